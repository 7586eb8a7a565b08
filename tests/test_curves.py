"""curves.png of a run."""

import json

import pytest
from matplotlib.figure import Figure
from PIL import Image

from toolkit.curves import draw, draw_evaluation

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


def shown(folder, rows, monkeypatch):
    """The figure that was written."""
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    written(folder, rows)
    return figures[0]


def test_one_step_is_at_a_whole_number(tmp_path, monkeypatch):
    for axes in shown(tmp_path, [{"step": 1, **ROW}], monkeypatch).axes:
        assert all(tick == int(tick) for tick in axes.get_xticks()), axes.get_xticks()


def test_a_panel_without_a_finite_value_says_so(tmp_path, monkeypatch):
    figure = shown(tmp_path, [{"step": n, **ROW, "loss": None} for n in (1, 2)], monkeypatch)
    told = {axes.get_title(): [text.get_text() for text in axes.texts] for axes in figure.axes}
    assert told.pop("loss") == ["not finite at any step"]
    assert set(map(tuple, told.values())) == {()}


SCORES = {
    "confusion_matrix": [[3, 1], [0, 6]],
    "per_class": [
        {"label": "$a", "precision": 1.0, "recall": 0.75, "f1": 0.857, "support": 4},
        {"label": "b" * 30, "precision": None, "recall": None, "f1": None, "support": 6},
    ],
}


def test_an_evaluation_is_a_matrix_and_a_bar_for_each_class(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    draw_evaluation(tmp_path, "ddp", SCORES)
    matrix, bars = figures[0].axes
    assert [text.get_text() for text in matrix.texts] == ["3", "1", "0", "6"]
    assert [tick.get_text() for tick in matrix.get_yticklabels()] == ["$a", "b" * 20]
    assert [round(bar.get_width(), 3) for bar in bars.patches] == [0.857, 0.0]
    assert [tick.get_text() for tick in bars.get_yticklabels()] == ["$a (4)", "b" * 20 + " (6)"]


def test_an_evaluation_is_written_where_it_has_both(tmp_path):
    draw_evaluation(tmp_path, "ddp", {"loss": 1.0, "confusion_matrix": [[1]]})
    assert not (tmp_path / "evaluation.png").exists()
    draw_evaluation(tmp_path, "ddp", SCORES)
    with Image.open(tmp_path / "evaluation.png") as picture:
        assert (picture.format, picture.size) == ("PNG", (880, 440))
