import pytest

from toolkit.metrics import F1, Accuracy, ConfusionMatrix, Examples, PerClass

CASES = [
    # (predictions, references, accuracy, macro F1), counted by hand as scikit-learn counts them
    ([0, 1, 1, 0], [0, 1, 0, 0], 0.75, (2 * 2 / 5 + 2 * 1 / 3) / 2),
    ([1] * 10 + [0], [1] * 11, 10 / 11, (2 * 10 / 21 + 0) / 2),
    ([0, 1, 2, 2], [0, 1, 2, 1], 0.75, (1 + 2 / 3 + 2 / 3) / 3),
    ([3, 3], [3, 3], 1.0, 1.0),
    ([0, 0], [1, 1], 0.0, 0.0),
]


@pytest.mark.parametrize(("predictions", "references", "accuracy", "f1"), CASES)
def test_values(predictions: list[int], references: list[int], accuracy: float, f1: float) -> None:
    assert Accuracy().compute(predictions=predictions, references=references) == {"accuracy": pytest.approx(accuracy)}
    assert F1().compute(predictions=predictions, references=references) == {"f1": pytest.approx(f1)}


def test_a_metric_is_used_again_and_fed_in_parts() -> None:
    metric = Accuracy()
    assert metric.compute(predictions=[1], references=[1]) == {"accuracy": 1.0}
    metric.add_batch(predictions=[0, 1], references=[1, 1])
    metric.add_batch(predictions=[1, 1], references=[1, 1])
    assert metric.compute() == {"accuracy": 0.75}


NAMES = ["cat", "dog", "owl", "yak"]
PREDICTED, WANTED = [0, 0, 1, 2, 2, 2], [0, 1, 1, 2, 2, 0]  # nothing is a yak


def test_a_confusion_matrix_has_a_row_for_each_reference() -> None:
    found = ConfusionMatrix(NAMES).compute(predictions=PREDICTED, references=WANTED)
    assert found == {"confusion_matrix": [[1, 0, 1, 0], [1, 1, 0, 0], [0, 0, 2, 0], [0, 0, 0, 0]]}


def test_per_class_counted_by_hand() -> None:
    found = PerClass(NAMES).compute(predictions=PREDICTED, references=WANTED)["per_class"]
    assert found == [
        {"label": "cat", "precision": 0.5, "recall": 0.5, "f1": 0.5, "support": 2},
        {"label": "dog", "precision": 1.0, "recall": 0.5, "f1": pytest.approx(2 / 3), "support": 2},
        {"label": "owl", "precision": pytest.approx(2 / 3), "recall": 1.0, "f1": pytest.approx(0.8), "support": 2},
        {"label": "yak", "precision": None, "recall": None, "f1": None, "support": 0},
    ]
    # Macro F1 is the mean of those that are defined.
    macro = F1().compute(predictions=PREDICTED, references=WANTED)["f1"]
    assert macro == pytest.approx(sum(row["f1"] for row in found[:3]) / 3)


def test_a_class_without_a_name_is_told() -> None:
    with pytest.raises(ValueError, match="class 4 is none of the 4 classes"):
        ConfusionMatrix(NAMES).compute(predictions=[4], references=[0])


@pytest.mark.parametrize("count, samples", [(3, [0, 2, 5]), (1, [0]), (8, [0, 1, 2, 3, 4, 5]), (6, [0, 1, 2, 3, 4, 5])])
def test_examples_are_the_same_samples_each_time(count: int, samples: list[int]) -> None:
    metric = Examples(NAMES, count)
    for _ in range(2):
        found = metric.compute(predictions=PREDICTED, references=WANTED)["examples"]
        assert [row["sample"] for row in found] == samples
        for row in found:
            wanted, predicted = NAMES[WANTED[row["sample"]]], NAMES[PREDICTED[row["sample"]]]
            assert (row["label"], row["predicted"]) == (wanted, predicted)
