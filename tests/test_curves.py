"""curves.png of a run."""

import json

import pytest
from PIL import Image

from toolkit.curves import draw

ROW = {"loss": 2.5, "learning_rate": 0.1, "grad_norm": 1.5, "samples_per_second": 80.0}


def written(folder, rows):
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    draw(folder, r"$\alpha zero2 <b>")
    return folder / "curves.png"


def ink(path):
    """Share of the picture's points that are not white."""
    with Image.open(path) as picture:
        assert (picture.format, picture.size) == ("PNG", (990, 660))
        return sum(value < 250 for value in picture.convert("L").tobytes()) / (990 * 660)


def test_more_steps_are_more_to_see(tmp_path):
    many = [{"step": n, **ROW, "loss": 2.5 / n} for n in range(1, 30)] + [{"step": 29, "eval_loss": 0.4}]
    one = ink(written(tmp_path, [{"step": 1, **ROW}]))
    assert 0.01 < one < ink(written(tmp_path, many)) < 0.5


@pytest.mark.parametrize(
    "rows", [[{"step": 1, **ROW, "loss": None}], [{"step": n, **ROW, "grad_norm": None} for n in (1, 2)]]
)
def test_what_is_not_finite_leaves_a_gap(tmp_path, rows):
    assert ink(written(tmp_path, rows)) > 0.01


def test_without_a_step_there_is_no_picture(tmp_path):
    assert not written(tmp_path, [{"step": 0, "eval_loss": 1.0}]).exists()


def test_a_folder_that_takes_no_file_is_an_os_error(tmp_path):
    (tmp_path / "curves.png").mkdir()
    with pytest.raises(OSError):
        written(tmp_path, [{"step": 1, **ROW}])
