"""report.html in a real Chromium: readable on a wide screen and on a telephone, in light and dark, and quiet."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from toolkit.compare.page import write_page

WIDTHS = (1280, 390)
NASTY = [
    "<script>window.flag = 1</script>",
    '"><img src=https://example.org/x onerror="window.flag = 1">',
    "</text></svg><svg onload='window.flag = 1'>",
]
FOUND = """
(() => {
  const rgb = hex => `rgb(${(hex.match(/\\w\\w/g) ?? []).map(part => parseInt(part, 16)).join(", ")})`;
  const grid = rgb(getComputedStyle(document.documentElement).getPropertyValue("--grid").trim());
  const shown = element => element.getClientRects().length > 0;
  const rectangle = element => {
    const box = element.getBoundingClientRect();
    return {left: box.left, right: box.right, width: box.width, height: box.height};
  };
  const luminance = text => {
    const part = value => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
    const [r, g, b] = text.match(/[\\d.]+/g).map(value => part(value / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const page = getComputedStyle(document.body).backgroundColor;
  const contrast = text => {
    const [low, high] = [luminance(text), luminance(page)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  const width = document.documentElement.clientWidth;
  const drawn = [...document.querySelectorAll("figure > svg")].filter(shown);
  const texts = svg => [...svg.querySelectorAll("text")];
  const words = [...document.querySelectorAll("h1, h2, h3, p, li, td, th, pre, dd, dt, figcaption, .verdict")];
  return {
    page, flag: window.flag ?? null, text: document.body.innerText,
    over: document.documentElement.scrollWidth - width,
    outside: [...document.querySelectorAll("body *")].filter(shown).filter(element => !element.closest("thead, svg"))
      .filter(element => element.getBoundingClientRect().right > width + 1).map(element => element.outerHTML),
    figures: drawn.map(svg => ({
      form: svg.getAttribute("class"), label: svg.getAttribute("aria-label"), box: rectangle(svg),
      texts: texts(svg).map(text => text.textContent),
      cut: texts(svg).filter(text => {
        const [inner, outer] = [text.getBoundingClientRect(), svg.getBoundingClientRect()];
        return inner.left < outer.left - 1 || inner.right > outer.right + 1
          || inner.top < outer.top - 1 || inner.bottom > outer.bottom + 1;
      }).map(text => text.textContent),
      size: Math.min(...texts(svg).map(text =>
        parseFloat(getComputedStyle(text).fontSize) * svg.getBoundingClientRect().width / svg.viewBox.baseVal.width)),
      contrast: Math.min(...texts(svg).map(text => contrast(getComputedStyle(text).fill))),
      lines: Math.min(...[...svg.querySelectorAll("path")].map(path => getComputedStyle(path).stroke)
        .filter(stroke => stroke.startsWith("rgb") && stroke !== grid && stroke !== page).map(contrast)),
    })),
    contrast: Math.min(...words.filter(shown).map(element => contrast(getComputedStyle(element).color))),
  };
})()
"""
LABELS = ["step", "loss", "time (s)", "relative deviation", "samples/s", "peak memory (MiB)"]


def look(page: Path, scheme: str) -> dict[str, Any]:
    """What `browser.py` prints of `page`; its pictures lie beside it."""
    command = [sys.executable, str(Path(__file__).with_name("browser.py")), str(page), scheme, str(page.parent)]
    done = subprocess.run(
        [*command, *map(str, WIDTHS)], input=FOUND, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def seen(compared, tmp_path_factory) -> dict[str, dict[str, Any]]:
    """What each scheme shows of a page of five setups, of which one differs, one has failed, and names are hostile."""
    page = tmp_path_factory.mktemp("page") / "report.html"
    wave = [2.0 + 0.1 * (n % 7) - 0.02 * n for n in range(50)]
    losses = {"single": wave, "ddp": wave, "my-long-" + "x" * 192: wave, **{name: wave[::-1] for name in NASTY}}
    differs = {"verdict": "differs", "step": 12, "cause": NASTY[0], "parameter_name": NASTY[1]}
    comparison = compared(
        losses | {"failed": []},
        errors={"failed": NASTY},
        measured={NASTY[0]: differs, NASTY[1]: {"peak_memory_bytes": tuple(range(64 << 20, 72 << 20, 1 << 20))}},
        notes=NASTY,
        environment={"command": "oneloop compare " + "y" * 300, NASTY[0]: NASTY[1]},
    )
    write_page(comparison, page)
    return {scheme: look(page, scheme) | {"url": page.as_uri()} for scheme in ("light", "dark")}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_loads_and_asks_for_nothing_else(scheme, seen):
    assert seen[scheme]["loaded"] is True
    assert seen[scheme]["console"] == []
    assert seen[scheme]["requests"] == [seen[scheme]["url"]]


@pytest.mark.parametrize("place", range(len(WIDTHS)), ids=map(str, WIDTHS))
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_readable(scheme, place, seen):
    found = seen[scheme]["found"][place]
    assert found["over"] <= 0
    assert found["outside"] == []
    assert found["contrast"] >= 4.5
    assert len(found["figures"]) == 5
    assert {figure["form"] for figure in found["figures"]} == {"wide" if WIDTHS[place] == 1280 else "narrow"}
    for figure in found["figures"]:
        assert figure["box"]["width"] > 300 and figure["box"]["height"] > 150
        assert figure["box"]["left"] >= 0 and figure["box"]["right"] <= WIDTHS[place]
        assert figure["size"] >= 9
        assert figure["cut"] == []
        assert figure["contrast"] >= 4.5
        assert figure["lines"] >= 3
    texts = [text for figure in found["figures"] for text in figure["texts"]]
    assert [label for label in LABELS if label not in texts] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_what_a_run_names_is_text(scheme, seen):
    for found in seen[scheme]["found"]:
        assert found["flag"] is None
        for name in NASTY:
            assert found["text"].count(name) >= 5


def test_dark_is_dark(seen):
    pages = {scheme: {found["page"] for found in seen[scheme]["found"]} for scheme in seen}
    assert pages == {"light": {"rgb(255, 255, 255)"}, "dark": {"rgb(20, 23, 28)"}}


def test_a_page_that_does_what_it_must_not_is_seen(tmp_path):
    page = tmp_path / "bad.html"
    page.write_text("<img src='https://example.org/x.png'><script>window.flag = 1; console.log('hm'); no()</script>")
    found = look(page, "light")
    assert found["requests"] == [page.as_uri(), "https://example.org/x.png"]
    assert ["hm" in found["console"][0], "no is not defined" in found["console"][1]] == [True, True]
    assert [each["flag"] for each in found["found"]] == [1, 1]
