import hashlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import written
from torch import Tensor, nn

from toolkit.errors import UserError
from toolkit.models import bert


def encoded(vocab_size: int = 100, types: bool = True) -> dict[str, Tensor]:
    """Three rows of 9, 5 and 2 tokens, padded."""
    torch.manual_seed(1)
    mask = torch.tensor([[1] * length + [0] * (9 - length) for length in (9, 5, 2)])
    inputs = {"input_ids": torch.randint(5, vocab_size, (3, 9)) * mask, "attention_mask": mask}
    if types:
        inputs["token_type_ids"] = (torch.arange(9) > 3).long().expand(3, 9) * mask
    return inputs


def through_layers(model: Any, inputs: dict[str, Tensor]) -> Tensor:
    hidden: Any = tuple(inputs.values())
    for layer in model.pipeline_layers():
        hidden = layer(hidden)
    assert isinstance(hidden, Tensor)
    return hidden


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("types", [True, False])
@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_the_layers_are_the_model(attention: str, types: bool, padded: bool, dropout: float) -> None:
    torch.manual_seed(0)
    model = bert.random_bert(3, dropout=dropout)
    model.set_attn_implementation(attention)
    model.train()
    inputs = encoded(types=types)
    if not padded:
        inputs["attention_mask"] = torch.ones_like(inputs["attention_mask"])
    torch.manual_seed(7)  # the same masks of dropout in the same order
    expected = model(**inputs).logits
    torch.manual_seed(7)
    assert (through_layers(model, inputs) - expected).abs().max() < 1e-6


def test_padding_does_not_change_a_row() -> None:
    model = bert.random_bert().eval()
    inputs = encoded()
    short = {name: tensor[2:, :2] for name, tensor in inputs.items()}
    assert torch.allclose(through_layers(model, inputs)[2:], through_layers(model, short), atol=1e-6)


def test_layers_hold_the_models_own_parameters_once() -> None:
    model = bert.random_bert(num_hidden_layers=3)
    layers = model.pipeline_layers()
    assert len(layers) == 5
    owned = [id(parameter) for layer in layers for parameter in layer.parameters()]
    assert sorted(owned) == sorted(id(parameter) for parameter in model.parameters())
    assert len(set(owned)) == len(owned)


def test_between_layers_goes_the_integer_mask() -> None:
    model = bert.random_bert()
    hidden: Any = tuple(encoded().values())
    for layer in model.pipeline_layers()[:-1]:
        hidden = layer(hidden)
        assert (hidden[0].dtype, hidden[1].dtype) == (torch.float32, torch.int64)
        assert tuple(hidden[0].shape) == (3, 9, 32)


def test_a_saved_model_is_loaded_in_fp32_with_a_new_head(tmp_path: Path) -> None:
    saved = bert.random_bert(dropout=0.1)
    saved.bert.half().save_pretrained(tmp_path)  # a body without a classifier, in 16 bit
    model = bert.load_bert(str(tmp_path), label_names=["a", "b", "c"], dropout=0.25)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert model.classifier.out_features == 3
    assert model.config.id2label == {0: "a", 1: "b", 2: "c"}
    assert {module.p for module in model.modules() if isinstance(module, nn.Dropout)} == {0.25}
    assert torch.equal(model.bert.pooler.dense.weight, saved.bert.pooler.dense.weight.float())
    kept = bert.load_bert(str(tmp_path), num_labels=2)
    assert {module.p for module in kept.modules() if isinstance(module, nn.Dropout)} == {0.1}


@pytest.mark.parametrize(("places", "limit", "kept"), [(24, None, 24), (24, 16, 16), (24, 100, 24)])
def test_a_tokenizer_makes_no_longer_rows_than_the_model_takes(
    tmp_path: Path, places: int, limit: int | None, kept: int
) -> None:
    bert.random_bert(max_position_embeddings=places).config.save_pretrained(tmp_path)
    tokenizer = written.tokenizer()
    tokenizer.model_max_length = limit or 10**30
    tokenizer.save_pretrained(tmp_path)
    assert bert.load_tokenizer(str(tmp_path)).model_max_length == kept


def test_rotary_positions_have_no_last(tmp_path: Path) -> None:
    from transformers import ModernBertConfig

    ModernBertConfig(max_position_embeddings=24).save_pretrained(tmp_path)
    tokenizer = written.tokenizer()
    tokenizer.model_max_length = 100
    tokenizer.save_pretrained(tmp_path)
    assert bert.load_tokenizer(str(tmp_path)).model_max_length == 100


def test_other_classifiers_load_too_without_a_cut(tmp_path: Path) -> None:
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    config = DistilBertConfig(vocab_size=50, dim=16, n_layers=1, n_heads=2, hidden_dim=32)
    DistilBertForSequenceClassification(config).save_pretrained(tmp_path)
    model = bert.load_bert(str(tmp_path), num_labels=2, dropout=0.0)
    assert type(model).__name__ == "DistilBertForSequenceClassification"
    assert {module.p for module in model.modules() if isinstance(module, nn.Dropout)} == {0.0}
    assert not hasattr(model, "pipeline_layers")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("./none", "no such folder; give a folder that from_pretrained loads, or a name on the hub"),
        ("EMPTY", "cannot be loaded: "),
        ("TRUNCATED", "cannot be loaded: "),
        ("OTHER_HEAD", "its weights do not fit a classifier of 3 labels"),
    ],
)
def test_a_model_that_cannot_be_loaded_is_told(tmp_path: Path, name: str, told: str) -> None:
    if name != "./none":
        (tmp_path / name).mkdir()
    if name in ("TRUNCATED", "OTHER_HEAD"):
        bert.random_bert(2).save_pretrained(tmp_path / name)
    if name == "TRUNCATED":
        weights = tmp_path / name / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:1000])
    given = name if name == "./none" else str(tmp_path / name)
    with pytest.raises(UserError) as caught:
        bert.load_bert(given, label_names=["a", "b", "c"])
    (line,) = caught.value.lines
    assert line.startswith(f"--model_name_or_path: {given!r}: ")
    assert told in line


def test_a_tokenizer_that_cannot_be_loaded_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--model_name_or_path: .*: cannot be loaded"):
        bert.load_tokenizer(str(tmp_path))


def test_the_packaged_model_is_checked_and_used() -> None:
    name, line = bert.default_model()
    assert "all-MiniLM-L6-v2 of the extra 'samples'" in line and "hash checked" in line
    model = bert.load_bert(name, num_labels=2, dropout=0.0).eval()
    assert len(model.pipeline_layers()) == 8
    inputs = encoded(vocab_size=30522)
    with torch.no_grad():
        assert (through_layers(model, inputs) - model(**inputs).logits).abs().max() < 1e-6
    assert bert.load_tokenizer(None)("good film")["input_ids"] == [101, 2204, 2143, 102]


def test_a_packaged_model_with_other_weights_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model").mkdir()
    spec = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(bert, "find_spec", lambda name: spec)
    with pytest.raises(UserError, match="no such file; reinstall the extra 'samples'"):
        bert.default_model()
    (tmp_path / "model" / "model.safetensors").write_bytes(b"other")
    found = hashlib.sha256(b"other").hexdigest()
    with pytest.raises(UserError, match=f"its SHA-256 is {found}, not {bert.PACKAGE_SHA256}"):
        bert.default_model()


def test_without_the_package_it_is_the_articles_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bert, "find_spec", lambda name: None)
    name, line = bert.default_model()
    assert name == "google-bert/bert-base-uncased"
    assert line == "model: google-bert/bert-base-uncased from the hub (extra 'samples' not installed)"
