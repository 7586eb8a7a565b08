import pytest

from toolkit.metrics import F1, Accuracy

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
