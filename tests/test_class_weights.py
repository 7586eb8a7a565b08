"""--class_weights: numbers by class, by name or balanced, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

import toolkit
from toolkit.class_weights import row_weights
from toolkit.data.loader import TrainLoader, collate_rows
from toolkit.data.sampler import Sampler
from toolkit.errors import UserError

LABELS = [0, 0, 0, 2, 2, 0]
DATA = toolkit.Data([(0.0, label) for label in LABELS], labels=LABELS, label_names=["cat", "dog", "owl"])


@pytest.mark.parametrize(
    "wanted, weights",
    [
        (None, None),
        ([2.0, 5.0, 0.5], [2.0, 2.0, 2.0, 0.5, 0.5, 2.0]),
        ({"owl": 4}, [1.0, 1.0, 1.0, 4.0, 4.0, 1.0]),
        # 6 rows in 2 classes that have some: 6 / (2 x 4) and 6 / (2 x 2), so that both weigh 3 in all.
        ("balanced", [0.75, 0.75, 0.75, 1.5, 1.5, 0.75]),
    ],
)
def test_each_row_has_its_classs_weight(wanted: Any, weights: Any) -> None:
    assert row_weights(wanted, DATA) == weights


@pytest.mark.parametrize(
    "wanted, line",
    [
        (
            [1.0, 2.0],
            "--class_weights: [1.0, 2.0]: 2 numbers for 3 classes; give one each, in this order: cat, dog, owl",
        ),
        ({"owls": 2.0}, "--class_weights: owls: 2.0: is no class; did you mean owl?"),
        ({"x": 2.0}, "--class_weights: x: 2.0: is no class; the classes are cat, dog, owl"),
    ],
)
def test_weights_of_other_classes_are_refused(wanted: Any, line: str) -> None:
    with pytest.raises(UserError) as caught:
        row_weights(wanted, DATA)
    assert caught.value.lines == (line,)


def test_data_without_classes_are_refused() -> None:
    with pytest.raises(UserError, match="--class_weights: 'balanced': the data do not say which class"):
        row_weights("balanced", toolkit.Data([(0.0, 1)]))


def test_a_plan_weighs_its_rows_and_its_total_is_that_of_the_global_batch() -> None:
    weights = row_weights([2.0, 1.0, 0.5], DATA)
    share: dict[str, Any] = {"micro_batch_size": 2, "gradient_accumulation_steps": 1, "size": 2}
    loaders = [
        TrainLoader(DATA.train, collate_rows, Sampler(6, 4, 0), rank=rank, row_weights=weights, **share)
        for rank in (0, 1)
    ]
    for epoch in range(2):
        for step in range(2):
            batches = [list(list(loader.epoch(epoch))[step])[0] for loader in loaders]
            ids = Sampler(6, 4, 0).global_batch(epoch, step)
            assert {batch.total for batch in batches} == {sum(weights[row] for row in ids)}
            for batch in batches:
                own = [weights[row] for row in batch.ids.tolist()]
                assert batch.weights.tolist() == (own if len(ids) == 4 else [own[0], 0.0])


@pytest.mark.parametrize(
    "text", ["balance", "[]", "{}", "[1, 0]", "[1, -2]", "[1, true]", '["1"]', "[NaN]", '{"a": "b"}']
)
def test_what_is_no_weight_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="^--class_weights: "):
        toolkit.parse_arguments(["--class_weights", text], description="", defaults={})


def test_a_stream_has_none() -> None:
    argv = ["--streaming", "--train_file", "a.csv", "--max_train_steps", "1", "--class_weights", "balanced"]
    with pytest.raises(UserError) as caught:
        toolkit.parse_arguments(argv, description="", defaults={})
    assert caught.value.lines[0].startswith("--class_weights: 'balanced': which class each row of a stream has")
