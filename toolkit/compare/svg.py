"""A matplotlib figure as part of an HTML page, coloured by the page's style sheet."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from markupsafe import Markup

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# matplotlib knows no CSS variables: it draws in these colours, and the page gives them theirs.
COLOURS = {"#010101": "ink", "#010102": "muted", "#010103": "grid", "#010104": "page", "#010105": "bar"}
INK, MUTED, GRID, PAGE, BAR = COLOURS
LINES = [f"#0202{n:02d}" for n in range(7)]  # the reference's, and six that the setups share
COLOURS |= {colour: f"line-{n}" for n, colour in enumerate(LINES)}
_NOT_TEXT = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
STYLE: Any = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "oneloop",
    "text.parse_math": False,
    "font.size": 10.5,  # px
    "xtick.labelsize": 10.5,
    "ytick.labelsize": 10.5,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "grid.color": GRID,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
}


def clean(text: str) -> str:
    """What a page can hold: control characters, halves of surrogate pairs and what is no character become U+FFFD."""
    return _NOT_TEXT.sub("\ufffd", text)


def inline(figure: Figure, name: str, title: str) -> Markup:
    """Inline SVG: no names of XML, no ids but those that are used and are this figure's own, colours by variables."""
    file = io.StringIO()
    figure.savefig(file, format="svg", facecolor="none", metadata={"Date": None})
    root = ElementTree.fromstring(file.getvalue())
    used = set(re.findall(r'(?:url\(|href=")#([\w-]+)', file.getvalue()))
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag.endswith(("}metadata", "}style")):
                parent.remove(child)
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        given = {key.rpartition("}")[2]: value for key, value in element.attrib.items()}
        if given.get("id") not in used:
            given.pop("id", None)
        else:
            given["id"] = f"{name}-{given['id']}"
        if "href" in given:
            given["href"] = f"#{name}-{given['href'][1:]}"
        if "clip-path" in given:
            given["clip-path"] = given["clip-path"].replace("#", f"#{name}-")
        if "style" in given:
            style = re.sub(r"font-family: [^;]*(; )?", "", given["style"])
            given["style"] = re.sub("#0[12]0[12]0[0-9]", lambda found: f"var(--{COLOURS[found[0]]})", style)
        element.attrib.clear()
        element.attrib.update(given)
    _, _, width, height = root.attrib["viewBox"].split()
    size = {"viewBox": root.attrib["viewBox"], "width": width, "height": height}
    root.attrib.clear()
    root.attrib.update(size | {"class": name.rpartition("-")[2], "role": "img", "aria-label": title})
    return Markup(ElementTree.tostring(root, encoding="unicode"))
