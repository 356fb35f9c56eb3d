"""Figures as files, and as SVG for a page: with tooltips, and text in the colour of the page.

`set_tooltips` stores texts in an artist's group id, which matplotlib writes into the SVG; then each mark of
the artist gets its text as a title. Other ids get the figure's name as prefix, so that several figures can
share a page.
"""

import hashlib
import json
import re
from collections.abc import Sequence
from io import BytesIO, StringIO
from pathlib import Path
from xml.etree import ElementTree as ET

import matplotlib
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from strongreplay.storage import files

SVG = "{http://www.w3.org/2000/svg}"
LINK = "{http://www.w3.org/1999/xlink}href"
DPI = 150
LONG_NUMBER = re.compile(r"-?\d+\.\d{3,}")
REFERENCE = re.compile(r"url\(#([^)]+)\)")
FONT_NAMES = re.compile(r"font-family: [^;]*; ?")
NO_TURN = re.compile(r"rotate\(-?0(\.0+)? [^)]*\)")


def set_tooltips(artist: Artist, texts: Sequence[str]) -> None:
    """Set a text for each mark of an artist, in drawing order."""
    artist.set_gid(json.dumps(list(texts)))


def as_svg(figure: Figure) -> str:
    """Markup for a page: full width, text in the page's colour, no background."""
    root = svg_tree(figure, transparent=True)
    for key in ("width", "height"):
        root.attrib.pop(key, None)
    return ET.tostring(root, encoding="unicode")


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """The figure as PNG and as SVG."""
    return [write(figure, folder / f"{name}{suffix}") for suffix in (".png", ".svg")]


def write(figure: Figure, path: Path) -> Path:
    """Write one file with a white background, in the format of its suffix."""
    if path.suffix == ".svg":
        root = svg_tree(figure)
        root.set("color", "black")  # also on a page with light text
        files.write_text(path, ET.tostring(root, encoding="unicode") + "\n")
    else:
        freeze_layout(figure)
        buffer = BytesIO()
        figure.savefig(buffer, dpi=DPI, format=path.suffix.removeprefix(".") or "png")
        files.write_bytes(path, buffer.getvalue())
    return path


def freeze_layout(figure: Figure) -> None:
    """Compute the layout once; otherwise every drawing computes it twice."""
    if isinstance(figure.get_layout_engine(), ConstrainedLayoutEngine):
        figure.draw_without_rendering()
        figure.set_layout_engine("none")


def svg_tree(figure: Figure, transparent: bool = False) -> ET.Element:
    freeze_layout(figure)
    buffer = StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "strongreplay"}):
        figure.savefig(buffer, format="svg", transparent=transparent, metadata={"Date": None})
    root = ET.fromstring(buffer.getvalue())
    remove_tags(root, (f"{SVG}metadata", f"{SVG}style"))
    for node in root.iter():
        simplify(node)
    for node in list(root.iter("g")):
        add_titles(node)
        share_style(node)
    rename_ids(root, prefix_of(figure, buffer.getvalue()))
    # The removed style sheet would have applied to the whole page.
    root.attrib |= {
        "xmlns": SVG.strip("{}"),
        "stroke-linejoin": "round",
        "fill": "currentColor",
        "role": "img",
    }
    title = " ".join(figure.get_suptitle().replace("\\$", "$").split())
    root.attrib |= {"font-family": "DejaVu Sans, Verdana, sans-serif", "aria-label": title}
    return root


def remove_tags(root: ET.Element, tags: tuple[str, ...]) -> None:
    for parent in list(root.iter()):
        for child in [child for child in parent if child.tag in tags]:
            parent.remove(child)


def simplify(node: ET.Element) -> None:
    """Remove namespaces and styles that the whole figure shares, and round numbers to visible precision."""
    node.tag = node.tag.removeprefix(SVG)
    node.tail = None
    if node.tag != "text":
        node.text = None
    if LINK in node.attrib:
        node.set("href", node.attrib.pop(LINK))
    for key in {"d", "x", "y", "width", "height", "transform"} & node.attrib.keys():
        node.set(key, " ".join(LONG_NUMBER.sub(shorten, node.attrib[key]).split()))
    if "style" in node.attrib:
        style = FONT_NAMES.sub("", node.attrib["style"])
        node.set("style", style.replace("#000000", "currentColor"))
    if NO_TURN.fullmatch(node.attrib.get("transform", "")):
        node.attrib.pop("transform")


def shorten(found: re.Match[str]) -> str:
    return f"{float(found[0]):.2f}".rstrip("0").rstrip(".")


def add_titles(group: ET.Element) -> None:
    """Add each text of an artist to one of its marks: markers if there are any, else shapes."""
    if not group.get("id", "").startswith("["):
        return
    shapes = [n for child in group if child.tag != "defs" for n in child.iter() if n.tag in ("use", "path")]
    marks = [node for node in shapes if node.tag == "use"] or shapes
    for mark, text in zip(marks, json.loads(group.attrib.pop("id")), strict=True):
        title = ET.Element("title")
        title.text = text
        mark.insert(0, title)


def share_style(group: ET.Element) -> None:
    """Move the style that all markers of a line share to their group."""
    styles = {child.get("style") for child in group}
    if len(group) > 1 and len(styles) == 1 and all(child.tag == "use" for child in group):
        group.set("style", styles.pop() or "")
        for child in group:
            child.attrib.pop("style", None)


def rename_ids(root: ET.Element, prefix: str) -> None:
    """Rename ids that are referenced to the prefix and a number; remove the others."""
    used = {name for node in root.iter() for text in node.attrib.values() for name in REFERENCE.findall(text)}
    used |= {node.attrib["href"][1:] for node in root.iter() if node.get("href", "").startswith("#")}
    short = {name: f"{prefix}-{number}" for number, name in enumerate(sorted(used))}
    for node in root.iter():
        name = node.attrib.pop("id", "")
        if name in short:
            node.set("id", short[name])
        for key, text in list(node.attrib.items()):
            node.set(key, REFERENCE.sub(lambda found: f"url(#{short[found[1]]})", text))
        if node.get("href", "").startswith("#"):
            node.set("href", f"#{short[node.attrib['href'][1:]]}")


def prefix_of(figure: Figure, svg: str) -> str:
    """A prefix from the figure's name or contents; short, because thousands of cells may refer to it."""
    name = str(figure.get_label()) or svg
    return "f" + hashlib.sha256(name.encode()).hexdigest()[:7]
