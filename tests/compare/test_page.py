"""report.html: what it says, and that nothing of a run is markup in it."""

from __future__ import annotations

import math
import re
import warnings
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from toolkit.compare.figures import FLOOR, _deviation, _seconds, _short, _thinned
from toolkit.compare.page import write_page

EMPTY = {"meta", "br", "wbr", "img"}
NASTY = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onload='alert(1)",
    r"$\alpha$ \frac{1}",
    "]]> <!-- {{ 7 * 7 }} {% raw %}",
    "&amp; &lt;b&gt;",
    "url(#a) fill: #010101",
    "مرحبا بالعالم",
    "\u202eabc",
    "🙂 訓練 e\u0301",
]


class Parsed(HTMLParser):
    """Elements, attributes and text; fails where elements are not closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.open: list[str] = []
        self.texts: list[str] = []
        self.drawn: list[str] = []  # in figures
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.handle_startendtag(tag, attrs)
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.texts.append(data)
        if self.open and self.open[-1] == "text":
            self.drawn.append(data)

    def values(self, name: str) -> list[str]:
        return [value for key, value in self.attributes if key == name]

    @property
    def text(self) -> str:
        return " ".join("".join(self.texts).split())


def page(comparison, tmp_path: Path) -> Parsed:
    write_page(comparison, tmp_path / "report.html")
    return Parsed((tmp_path / "report.html").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def usual(compared, tmp_path_factory) -> Parsed:
    differs = {"verdict": "differs", "step": 2, "cause": "clipping: 1.0 in the reference, 0.5 here"}
    pipeline = {"verdict": "same within tolerance", "ranks": 4, "idle": 0.34, "idle_even": 0.2, "idle_bound": 0.31}
    return page(
        compared(
            {"single": [2.0, 1.5, 1.0], "ddp": [2.0, 1.5, 1.0], "mine.json": [2.0, 1.6, 1.3], "pp": [2.0], "bad": []},
            errors={"bad": ["ended with 1", "RuntimeError: boom"]},
            setups={
                "single": {"world_size": 1, "max_grad_norm": 1.0, "rank": 0, "deepspeed_config": {"a": {"b": 1}}},
                "mine.json": {"world_size": 1, "max_grad_norm": 0.5, "rank": 1, "deepspeed_config": {"a": {"b": 2}}},
            },
            measured={"mine.json": differs, "pp": pipeline},
            notes=("--dropout 0: masks differ",),
            environment={"torch": "2.13.0", "machine": {"cores": 2}},
        ),
        tmp_path_factory.mktemp("page"),
    )


def test_the_page_says_what_was_measured(usual):
    for said in (
        "Comparison of scripts/train_cnn.py 5 setups: 1 same, 1 same within tolerance, 1 differs, 1 failed. "
        "The reference is single. --dropout 0: masks differ",
        "mine.json differs from step 2 zero2 2 fp32 3.2e-07 1.1e-06 "
        "4.0e-05 encoder.layer.0.attention.self.query.weight accuracy 0.6289 clipping: 1.0 in the reference, 0.5 here",
        "bad ended with 1 RuntimeError: boom",
        "ddp 2 380 (350 to 410) 8.8 s 720.0 MiB 18.7 MiB, 0.07 s – – –",
        "setup ranks samples/s first step peak memory checkpoint idle idle, even idle, bound single",
        "34% 20% 31%",
        "max_grad_norm 1.0 0.5 mine.json.json: max_grad_norm deepspeed_config.a.b 1 2 mine.json.json: deepspeed_config",
        "torch 2.13.0 machine.cores 2",
    ):
        assert said in usual.text
    assert "709.0 MiB, 720.0 MiB" in usual.values("title")
    assert "rank 0 1" not in usual.text


def test_each_figure_stands_there_twice_with_its_axes(usual):
    titles = ["Loss at each step", "Loss over time", "Deviation of the loss from the reference", "Speed"]
    assert usual.values("aria-label") == [title for title in [*titles, "Peak memory of each rank"] for _ in range(2)]
    assert (usual.values("class").count("wide"), usual.values("class").count("narrow")) == (5, 5)
    for label in ("step", "loss", "time (s)", "relative deviation", "samples/s", "peak memory (MiB)"):
        assert sum(text.strip() == label for text in usual.texts) >= 2, label
    assert usual.text.count("1e-08") >= 3  # the floor, on both axes and in the caption


def test_the_page_asks_for_nothing(usual):
    assert {"script", "link", "img", "iframe", "object", "form", "image"} & set(usual.tags) == set()
    assert [name for name, _ in usual.attributes if name.startswith("on") or name == "src"] == []
    identifiers = usual.values("id")
    assert len(identifiers) == len(set(identifiers))
    links = usual.values("href") + re.findall(r"url\((.*?)\)", " ".join(usual.values("clip-path")))
    assert {link.removeprefix("#") for link in links} == set(identifiers)
    assert "http" not in usual.text


def test_colours_are_the_style_sheets(usual, compared, tmp_path):
    styles = " ".join(usual.values("style"))
    assert "#" not in styles and "font-family" not in styles
    write_page(compared({"single": [1.0]}), tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    light, dark = (dict(re.findall(r"--([\w-]+): (#\w{6});", part)) for part in text.split("prefers-color-scheme")[:2])
    assert set(re.findall(r"var\(--([\w-]+)\)", styles)) <= set(light) == set(dark)
    for palette in (light, dark):
        for name in ("ink", "muted", "good", "bad"):
            assert contrast(palette[name], palette["page"]) >= 4.5, name
        for name in ("bar", *(f"line-{n}" for n in range(7))):
            assert contrast(palette[name], palette["page"]) >= 3, name


def contrast(one: str, other: str) -> float:
    """WCAG 2.2's ratio."""

    def luminance(colour: str) -> float:
        parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_nothing_of_a_run_is_markup(compared, tmp_path):
    labels = [*NASTY, "\x00\x1b[31m \ud800 \uffff", "long " + "x" * 195]
    nasty = "".join(NASTY)
    measured = {label: {"strategy": nasty, "precision": nasty, "cause": nasty, "parameter_name": nasty,
                        "verdict": "differs", "step": 1, "metrics": {nasty: 1.0}} for label in labels[1:]}  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of glyphs that a font lacks
        found = page(
            compared(
                {label: [2.0, 1.0] for label in labels} | {"failed" + nasty: []},
                errors={"failed" + nasty: NASTY},
                setups={label: {nasty: {nasty: label}} for label in labels},
                measured=measured,
                script=nasty,
                notes=NASTY,
                environment={nasty: nasty},
            ),
            tmp_path,
        )
    assert {"script", "img", "b"} & set(found.tags) == set()
    assert [name for name, _ in found.attributes if name.startswith("on") or name == "src"] == []
    for label in NASTY:
        assert found.drawn.count(label) == 4  # above its bars, in both forms
        assert found.texts.count(label) >= 4  # verdicts, costs, notes, a difference; and the legends
    assert "\ufffd\ufffd[31m \ufffd \ufffd" in found.texts
    assert "long " + "x" * 195 in found.texts
    assert "49" not in found.text and "&amp; &lt;b&gt;" in found.text


@pytest.mark.parametrize(
    ("losses", "errors", "figures"),
    [
        ({"single": [2.0]}, {}, 4),
        ({"single": [2.0] * 3, "ddp": [2.0, None, 1.0]}, {}, 5),
        ({"single": [None], "ddp": [None]}, {}, 2),
        ({"a": [], "b": []}, {"a": ["boom"], "b": ["boom"]}, 0),
        ({"a": [2.0], "b": []}, {"a": ["boom"], "b": ["boom"]}, 2),
    ],
    ids=["one step of one", "a gap", "nothing finite", "all failed", "all failed, one on its way"],
)
def test_what_there_is_to_draw(losses, errors, figures, compared, tmp_path):
    found = page(compared(losses, errors=errors), tmp_path)
    assert found.tags.count("figure") == figures
    assert ("There is no reference." in found.text) == (len(errors) == len(losses))


def test_what_no_run_tells_has_no_column(compared, tmp_path):
    nothing = {"metrics": {}, "samples_per_second": None, "spread": None, "peak_memory_bytes": ()}
    nothing |= {"checkpoint_bytes": None, "checkpoint_seconds": None, "loss": None, "weights": None, "parameter": None}
    found = page(compared({"single": [2.0, 1.0]}, measured={"single": nothing}), tmp_path)
    assert "setup verdict strategy ranks precision single reference zero2 2 fp32 Largest" in found.text
    assert "setup ranks first step single 2 8.8 s Samples/s" in found.text
    assert found.tags.count("figure") == 2


def test_twelve_long_runs_are_a_small_page_and_the_same_twice(compared, tmp_path):
    wave = np.random.default_rng(0).random(5000)
    comparison = compared({f"setup {n}": list(1 + wave * n) for n in range(12)})
    texts = []
    for name in ("one.html", "two.html"):
        write_page(comparison, tmp_path / name)
        texts.append((tmp_path / name).read_bytes())
    assert texts[0] == texts[1]
    assert len(texts[0]) < 2e6


def test_a_thinned_line_keeps_its_extremes_and_gaps():
    y = np.sin(np.arange(5000.0))
    y[1234], y[2345], y[3456] = 9.0, -9.0, math.nan
    steps, thinned = _thinned(list(range(5000)), list(y))
    assert len(steps) <= 600
    assert (steps[0], steps[-1]) == (0, 4999)
    assert (np.nanmax(thinned), np.nanmin(thinned)) == (9.0, -9.0)
    assert steps[np.isnan(thinned)].tolist() == [3456.0]
    assert _thinned([1, 2], [3.0, 4.0])[1].tolist() == [3.0, 4.0]


def test_deviation_and_time_of_a_run(compared):
    reference, run = compared({"a": [2.0, 1.0, 0.0, None, 1.0], "b": [2.0, 1.5, 1.0, 1.0, None, 3.0]}).runs
    steps, values = _deviation(run, reference)
    assert steps == [1, 2, 3, 4, 5]
    assert values[:2] == [FLOOR, 0.5]
    assert all(math.isnan(value) for value in values[2:])
    assert _seconds(run) == pytest.approx([0.16, 0.32, 0.48, 0.64, 0.8, 0.96])
    run.rows[3]["samples_per_second"] = None
    assert [math.isnan(seconds) for seconds in _seconds(run)] == [False] * 3 + [True] * 3


def test_a_long_name_keeps_both_ends():
    assert _short("zero2", 20) == "zero2"
    assert _short("abcdefghijklmnopqrstuvwxyz", 10) == "abcd…vwxyz"
    assert len(_short("訓" * 50, 20)) <= 10
    assert _short("a\nb", 20) == "a b"
