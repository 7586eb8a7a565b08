"""A DeepSpeed file as it is read, and as it is given to DeepSpeed."""

import json

from toolkit.setup.dsjson import DeepSpeedFile, plain_config, read_deepspeed_json


def test_the_file_tells_the_line_of_each_key(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('{\n  // stages\n  "zero_optimization": {\n    "stage": 2,\n  },\n}\n')
    file = read_deepspeed_json(str(path))
    assert file.config == {"zero_optimization": {"stage": 2}}
    where = file.where("zero_optimization.stage")
    assert (where, where.file, where.key, where.line) == (f"{path}: {where.key}", str(path), where.key, 4)
    assert file.where("zero_optimization.stag").line is None


def test_no_auto_is_left_and_whole_numbers_are_integers():
    config = {
        "train_batch_size": "auto",
        "gradient_clipping": "auto",
        "steps_per_print": 10.0,
        "_note": {"x": 1},
        "fp16": {"enabled": "auto"},
        "optimizer": {"type": "AdamW", "params": {"lr": "auto"}},
        "pipeline": {"stages": 2},
        "zero_optimization": {
            "stage": 2,
            "reduce_bucket_size": "auto",
            "allgather_bucket_size": 2e8,
            "overlap_comm": None,
            "_why": "faster",
            "offload_optimizer": {"device": "none"},
        },
    }
    settled = {"train_batch_size": 16, "gradient_clipping": 0.5, "zero_optimization.stage": 2}
    assert plain_config(DeepSpeedFile("a.json", config), settled) == {
        "steps_per_print": 10,
        "zero_optimization": {"stage": 2, "allgather_bucket_size": 200000000},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "fp16": {"enabled": False},
        "bf16": {"enabled": False},
        "train_batch_size": 16,
        "gradient_clipping": 0.5,
    }
    assert "auto" not in json.dumps(plain_config(DeepSpeedFile("a.json", config), settled))
    assert config["zero_optimization"]["reduce_bucket_size"] == "auto"
