"""Pictures of a report: what is drawn is what was measured, and a page says so under the pointer."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.text import Annotation, Text

from strongreplay import metrics
from strongreplay.methods.table import METHOD_ROWS, style_number
from strongreplay.report.ablation import ablation_figure, ablation_groups_figure
from strongreplay.report.bars import forgetting_figure
from strongreplay.report.curves import accuracy_curves, curves_figure
from strongreplay.report.figures import all_figures
from strongreplay.report.matrices import matrices_figure
from strongreplay.report.memory_sizes import memory_figure
from strongreplay.report.scatter import plane_figure, time_figure
from strongreplay.report.styles import GREY, MOST_COLOURED, style_groups
from strongreplay.report.summary import summarise
from strongreplay.report.svg import as_svg, save
from strongreplay.report.tables import Group, group_records
from strongreplay.report.verdicts import Cell, judge_all
from strongreplay.runs.paper import ABLATIONS, items
from strongreplay.storage.records import RunRecord

NET = {"name": "mlp", "width": None}
WHOLE = list(ABLATIONS)[-1]
ORDER = sorted(METHOD_ROWS, key=style_number)


def make(
    method: str,
    lost: float = 10.0,
    seed: int = 0,
    memory: int | None = 200,
    tasks: int = 3,
    net: dict[str, Any] = NET,
    stream: str = "p-mnist",
    seconds: float = 5.0,
    **options: object,
) -> RunRecord:
    """Each task is at 10 % before it is learnt, then at 90, and loses `lost` points with each after it."""
    rows: list[list[float | None]] = [
        [90.0 - lost * (after - task) + seed if task <= after else 10.0 for task in range(tasks)]
        for after in range(tasks)
    ]
    rows = [[95.0] * tasks] if method == "joint" else rows
    matrix = metrics.as_matrix(rows)
    scores = {
        "matrix": rows,
        "average_accuracy": metrics.average_accuracy(matrix),
        "forgetting": metrics.forgetting(matrix),
    }
    config = {
        "stream": stream,
        "seed": seed,
        "method": {"name": method, "memory_size": memory, **options},
        "net": net,
    }
    measured = {"phases": {"train": {"seconds": seconds, "peak_memory_bytes": 1}}}
    return RunRecord(config, {"accuracy": {"domain-il": scores}}, measured)


def some_groups(*methods: str) -> list[Group]:
    records = [
        make(m, lost, s) for lost, m in enumerate(methods, 1) for s in (0, 2) if m not in ("sgd", "joint")
    ]
    records += [make(m, 20, s, memory=None) for m in methods if m in ("sgd", "joint") for s in (0, 2)]
    return group_records(records)


def marked(panel: Axes) -> list[Line2D]:
    return [line for line in panel.lines if line.get_gid() and line.get_marker() != "None"]


def legend_of(figure: Figure) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def labels_of(figure: Figure) -> list[str]:
    """Names at the ends of lines or beside points, the highest first, without line breaks."""
    texts = [text for panel in figure.axes for text in panel.texts]
    ranked = sorted(texts, key=lambda text: -text.get_position()[1])
    return [" ".join(text.get_text().split()) for text in ranked]


def titles_of(figure: Figure) -> list[str]:
    """As a browser would find them: each inside a mark."""
    root = ET.fromstring(as_svg(figure))
    space = "{http://www.w3.org/2000/svg}"
    marks = [node for tag in ("use", "path") for node in root.iter(space + tag)]
    titles = [title.text or "" for mark in marks for title in mark.findall(f"{space}title")]
    assert len(titles) == len(list(root.iter(f"{space}title")))
    return titles


def bars_of(panel: Axes) -> list[Rectangle]:
    return [patch for patch in panel.patches if isinstance(patch, Rectangle)]


def test_a_curve_a_method_and_a_title_a_point() -> None:
    figure = curves_figure(some_groups("er", "ser", "sgd"))
    (panel,) = figure.axes
    assert len(marked(panel)) == 3
    assert labels_of(figure) == ["ER (n=2)", "SER (n=2)", "SGD (n=2)"]  # in the order they end
    titles = titles_of(figure)
    assert len(titles) == 9
    # Seeds 0 and 2: after three tasks 88 and 90 on average for SER, which loses 2 a task.
    assert "SER, after task 3: 89.00 ± 12.71 % (n = 2)" in titles
    assert "SGD, after task 1: 91.00 ± 12.71 % (n = 2)" in titles


def test_each_title_is_in_its_own_mark() -> None:
    marks = ET.fromstring(as_svg(curves_figure(group_records([make("er")])))).iter(
        "{http://www.w3.org/2000/svg}use"
    )
    told = {float(mark.attrib["x"]): mark[0].text or "" for mark in marks if len(mark)}
    assert [told[x][:16] for x in sorted(told)] == [f"ER, after task {n}:"[:16] for n in (1, 2, 3)]
    cells = ET.fromstring(as_svg(matrices_figure(group_records([make("er", 40)]), "domain-il")))
    shades = [
        (mark[0].text or "", re.findall(r"fill: (#\w+)", mark.attrib["style"])[0])
        for tag in ("use", "path")
        for mark in cells.iter("{http://www.w3.org/2000/svg}" + tag)
        if len(mark)
    ]
    assert len(shades) == 6
    colours = {re.findall(r": (\S+) %", text)[0]: colour for text, colour in shades}
    assert len(colours) == len(set(colours.values())) == 3  # 90, 50 and 10 %
    assert max(colours["10.00"], colours["50.00"]) < colours["90.00"]  # cividis grows in red


def test_joint_training_is_a_line_across_and_no_competitor() -> None:
    groups = some_groups("er", "ser", "joint")
    figure = curves_figure(groups)
    (panel,) = figure.axes
    assert len(marked(panel)) == 2
    assert labels_of(figure)[0] == "Joint, upper bound (n=2)"
    across = [line for line in panel.lines if line.get_linestyle() == ":"]
    assert [float(np.asarray(line.get_ydata())[0]) for line in across] == [95]
    assert "Joint, upper bound: 95.00 ± 0.00 % (n = 2)" in titles_of(figure)
    for other in (plane_figure(groups), time_figure(groups)):
        assert len(marked(other.axes[0])) == 2
        assert not any(text.get_text().startswith("Joint") for text in other.axes[0].texts)
    assert [panel.get_title() for panel in matrices_figure(groups, "domain-il").axes[:-1]] == [
        "ER (n=2)",
        "SER (n=2)",
    ]
    assert len(bars_of(forgetting_figure(groups).axes[0])) == 2


def test_matrices_show_what_was_learnt_in_words_and_colours() -> None:
    figure = matrices_figure(some_groups("er", "ser"), "domain-il")
    panels = figure.axes[:-1]  # the last is the colour bar
    assert [len(panel.texts) for panel in panels] == [6, 6]  # nothing above the diagonal
    assert [text.get_text() for text in panels[1].texts] == ["91", "89", "91", "87", "89", "91"]
    assert "SER, task 1 after 3: 87.00 % (n = 2)" in titles_of(figure)
    assert len(titles_of(figure)) == 12
    for panel in panels:
        (cells,) = (c for c in panel.collections if isinstance(c, PolyCollection))
        colours = np.asarray(cells.get_facecolor())[:, :3] @ (0.299, 0.587, 0.114)
        for text, brightness in zip(panel.texts, colours, strict=True):
            assert (text.get_color() == "white") == (brightness < 0.5)


def test_numbers_in_a_matrix_go_where_they_would_be_too_small() -> None:
    figure = matrices_figure(group_records([make("er", 2, tasks=11)]), "domain-il")
    assert not figure.axes[0].texts
    assert len(titles_of(figure)) == 66


def test_bars_of_forgetting_are_sorted_hatched_and_told() -> None:
    figure = forgetting_figure(some_groups("er", "ser", "sgd"))
    (panel,) = figure.axes
    bars = bars_of(panel)
    widths = [bar.get_width() for bar in bars]
    assert widths == sorted(widths)
    assert [label.get_text() for label in panel.get_yticklabels()] == ["ER", "SER", "SGD"]
    assert len({bar.get_facecolor() for bar in bars}) == 3
    # SER loses 2 points a task: 4 on the first and 2 on the second.
    assert titles_of(figure)[1] == "SER, forgetting: 3.00 ± 0.00 % (n = 2)"
    assert len(titles_of(figure)) == 3


def test_the_plane_has_plasticity_and_stability() -> None:
    figure = plane_figure(some_groups("er", "ser"))
    (panel,) = figure.axes
    spots = {
        (float(np.asarray(x)[0]), float(np.asarray(y)[0])) for x, y in (p.get_data() for p in marked(panel))
    }
    assert spots == {(91, 89.5), (91, 88)}
    assert {text.get_text() for text in panel.texts} == {"ER", "SER"}
    assert "SER: plasticity 91.00 %, stability 88.00 % (n = 2)" in titles_of(figure)


def test_labels_of_crowded_points_and_lines_to_them_do_not_lie_on_each_other() -> None:
    names = [name for name in ORDER if name != "joint"][:20]
    close = [make(name, 5 + number / 5, seed=number % 3) for number, name in enumerate(names[:-1])]
    far = make(names[-1], 40, seed=-15)  # so that the rest is close
    figure = plane_figure(group_records([*close, far]))
    figure.draw_without_rendering()
    texts = [text for text in figure.axes[0].texts if isinstance(text, Annotation)]
    boxes = [Text.get_window_extent(text) for text in texts]  # without the lines to them
    assert len(boxes) == 20
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
    lines = {id(text): text.arrow_patch for text in texts if text.arrow_patch}
    paths = {key: line.get_transform().transform_path(line.get_path()) for key, line in lines.items()}
    assert len(paths) > 5
    crossed = [
        (text.get_text(), box)
        for key, path in paths.items()
        for text, box in zip(texts, boxes, strict=True)
        if key != id(text) and path.intersects_bbox(box, filled=False)
    ]
    assert crossed == []


def test_labels_of_points_do_not_lie_on_lines_or_the_legend() -> None:
    names = [name for name in ORDER if name != "joint"][:12]
    # Just below the diagonal: the nearest place of many a label is on it.
    close = [make(name, 1 + number / 4, seed=number % 3) for number, name in enumerate(names)]
    figure = plane_figure(group_records([*close, make("joint", 3)]))
    figure.draw_without_rendering()
    (panel,) = figure.axes
    legend = panel.get_legend()
    assert legend
    boxes = [Text.get_window_extent(text) for text in panel.texts]
    lines = [line for line in panel.lines if line.get_linestyle() != "None"]
    assert len(boxes) == 12
    assert len(lines) == 2, "nothing lost, and joint training"
    for line in lines:
        path = line.get_transform().transform_path(line.get_path())
        assert not any(path.intersects_bbox(box, filled=False) for box in boxes), line.get_label()
    assert not any(box.overlaps(legend.get_window_extent()) for box in boxes)


def test_memory_has_a_line_for_two_sizes_and_dots_across_without() -> None:
    records = [
        make("er", 9, memory=200),
        make("er", 5, memory=500),
        make("ser", 3),
        make("sgd", 30, memory=None),
    ]
    figure = memory_figure(group_records([*records, make("joint", memory=None)]))
    (panel,) = figure.axes
    assert set(labels_of(figure)) == {"ER", "SGD, no memory", "Joint, upper bound (n=1)"}  # SER has one size
    er, sgd = marked(panel)
    assert [list(np.asarray(er.get_data()[0])), sgd.get_linestyle()] == [[200, 500], ":"]
    assert "ER, memory 500: 85.00 % (n = 1)" in titles_of(figure)
    assert not memory_figure(group_records([make("ser"), make("sgd", memory=None)])).axes
    small, large, *_ = group_records(records[:2])
    named = [replace(small, variant="published"), large]  # as it is where another variant is beside it
    assert labels_of(memory_figure(named)) == ["ER"]


def test_time_is_on_a_log_axis_and_what_was_not_timed_is_left_out() -> None:
    records = [make("er", 3, s, seconds=4.0 + s) for s in (0, 2)]
    groups = group_records([*records, replace(make("ser"), measured={"phases": {}})])
    figure = time_figure(groups)
    (panel,) = figure.axes
    assert panel.get_xscale() == "log"
    assert titles_of(figure) == ["ER: 88.00 ± 12.71 % (n = 2) in 5.0 s"]


def table4(number: int = 10) -> list[Cell]:
    cells = [cell for cell in judge_all(items(), []) if cell.item.target == "table4"]
    return [replace(cell, ours=summarise([60.0, 62.0])) for cell in cells[:number]] + cells[number:]


def test_the_ablation_of_the_paper_has_published_and_ours() -> None:
    figure = ablation_figure(table4())
    assert [panel.get_title() for panel in figure.axes] == [
        "seq-cifar10, memory 200, Class-IL",
        "seq-cifar10, memory 200, Task-IL",
    ]
    assert [len(bars_of(panel)) for panel in figure.axes] == [10, 10]
    ticks = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert [tick.split() for tick in ticks] == [
        ["CE"],
        ["CE", "+", "replay"],
        ["CE", "+", "replay", "+", "backward"],
        ["CE", "+", "replay", "+", "forward"],  # not on top of the one before
        ["CE", "+", "replay", "+", "backward", "+", "forward", "(SER)"],
    ]
    assert legend_of(figure) == ["published", "ours"]
    titles = titles_of(figure)
    whole = "CE + replay + backward + forward (SER)"
    assert f"{whole}, published: 69.86 %" in titles
    assert f"{whole}, ours: 61.00 ± 12.71 % (n = 2)" in titles
    assert not ablation_figure(table4(0)).axes


def test_our_own_ablation_is_one_of_groups_that_differ_in_terms_only() -> None:
    records = [make("ser", 5 - n, terms=list(terms)) for n, terms in enumerate(ABLATIONS)]
    other = make("ser", 1, terms=list(WHOLE), alpha=3)
    groups = group_records([*records, other, make("er")])
    figure = ablation_groups_figure(groups)
    (panel,) = figure.axes
    assert [bar.get_height() for bar in sorted(bars_of(panel), key=lambda bar: bar.get_x())] == [
        85,
        86,
        87,
        88,
        89,
    ]
    assert {"CE, ours: 85.00 % (n = 1)", "CE + replay, ours: 86.00 % (n = 1)"} <= set(titles_of(figure))
    assert not legend_of(figure)  # nothing to tell apart
    figures = dict(all_figures(groups, []))
    assert "p-mnist-m200-ablation" in figures
    # Parts of a loss are no methods: in the comparison there is SER as a whole, in its two variants.
    labels = {"SER (alpha=3) (n=1)", "SER (n=1)", "ER (n=1)"}
    assert set(labels_of(figures["p-mnist-m200-curves"])) == labels


@pytest.mark.slow
def test_all_figures_are_by_stream_and_memory() -> None:
    records = [make(m, size / 100, memory=size) for m in ("er", "ser") for size in (200, 500)]
    figures = dict(
        all_figures(group_records([*records, make("sgd", memory=None), make("joint", memory=None)]), [])
    )
    kinds = ("curves", "forgetting", "plane", "time", "matrices")
    assert set(figures) == {f"p-mnist-m{size}-{kind}" for size in (200, 500) for kind in kinds} | {
        "p-mnist-memory"
    }
    assert len(labels_of(figures["p-mnist-m200-curves"])) == 4
    assert figures["p-mnist-m500-curves"].get_suptitle().startswith("p-mnist · memory 500 · mlp · Domain-IL")
    assert all(re.fullmatch(r"[a-z0-9-]+", name) for name in figures)


def test_nets_are_not_mixed() -> None:
    wide = {"name": "cnn", "width": 8}
    records = [make(m, net=net) for m in ("er", "ser") for net in (NET, wide)]
    figures = dict(all_figures(group_records(records), []))
    curves = {name: figure for name, figure in figures.items() if name.endswith("curves")}
    assert set(curves) == {"p-mnist-mlp-m200-curves", "p-mnist-cnn-width-8-m200-curves"}
    for figure in curves.values():
        assert sorted(labels_of(figure)) == ["ER (n=1)", "SER (n=1)"]  # what all share is in the title
    assert "cnn, width 8" in curves["p-mnist-cnn-width-8-m200-curves"].get_suptitle()


def test_variants_are_told_apart_and_every_method_looks_the_same_everywhere() -> None:
    groups = group_records([make("er"), make("ser", alpha=1), make("ser", 5, alpha=2)])
    styles = {style.label: style for _, style in style_groups(groups)}
    assert set(styles) == {"ER", "SER (alpha=1)", "SER (alpha=2)"}
    assert len({(style.colour, style.marker) for style in styles.values()}) == 3
    alone = dict(zip(("ER",), (style for _, style in style_groups(group_records([make("er")]))), strict=True))
    assert alone["ER"] == styles["ER"]
    parts = group_records([make("ser", terms=["current"]), make("ser", terms=["current", "replay"])])
    assert {style.label for _, style in style_groups(parts)} == {
        "SER (terms=current)",
        "SER (terms=current,replay)",
    }


def test_at_most_eight_are_in_colour_and_no_colour_or_marker_comes_twice() -> None:
    records = [make(name, 1 + place, memory=200) for place, name in enumerate(ORDER)]
    styles = {group.method: style for group, style in style_groups(group_records(records))}
    coloured = {method: style for method, style in styles.items() if style.is_coloured}
    assert len(coloured) == MOST_COLOURED
    assert len({style.colour for style in coloured.values()}) == MOST_COLOURED
    assert len({style.marker for style in coloured.values()}) == MOST_COLOURED
    # The bounds, SER, and those that forget about as much: in ORDER the places beside it.
    assert set(coloured) == {"sgd", "ser", "joint", "er", "derpp", "der", "clser", "icarl"}
    assert {style.colour for method, style in styles.items() if method not in coloured} == {GREY}


def test_the_lower_bound_and_the_best_are_in_colour_on_any_net() -> None:
    records = [make(name, 10 + place, memory=200) for place, name in enumerate(ORDER) if name != "gem"]
    records += [make("gem", 1, memory=200)]  # far ahead of SER
    twins = [make(name, 12, memory=200, net={"name": "cnn", "width": 8}) for name in ("sgd", "ser")]
    styled = style_groups(group_records([*records, *twins]))
    coloured = [group.method for group, style in styled if style.is_coloured]
    assert coloured.count("sgd") == coloured.count("ser") == 2
    assert "gem" in coloured


def test_names_at_the_ends_of_many_lines_do_not_lie_on_each_other_or_on_lines() -> None:
    records = [
        make(f"method-{number}", 5 + number / 50, memory=size) for number in range(28) for size in (1, 9)
    ]
    figure = curves_figure(group_records(records))
    assert [panel.get_title() for panel in figure.axes] == ["memory 1 · Domain-IL", "memory 9 · Domain-IL"]
    figure.draw_without_rendering()
    width = figure.bbox.width
    for panel in figure.axes:
        boxes = [Text.get_window_extent(text) for text in panel.texts]
        assert len(boxes) == 28
        assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
        assert all(panel.bbox.x1 < box.x0 and box.x1 <= width for box in boxes)


def test_nothing_gives_no_figure() -> None:
    assert dict(all_figures([], [])) == {}
    stopped = replace(make("ser"), results={"accuracy": {}})
    single = make("er", tasks=1)  # one task tells nothing about forgetting
    assert dict(all_figures(group_records([stopped, single]), judge_all(items(), []))) == {}
    assert dict(all_figures(group_records([make("joint", memory=None)]), [])) == {}
    for figure in (
        curves_figure([]),
        plane_figure([]),
        matrices_figure([], "class-il"),
        ablation_groups_figure([]),
    ):
        assert not figure.axes


def test_a_seed_that_stopped_early_is_not_averaged_with_whole_ones() -> None:
    whole, part = make("er", 5, 0), make("er", 5, 1)
    part.results["accuracy"]["domain-il"]["matrix"] = [[90.0]]
    figure = curves_figure(group_records([whole, part]))
    assert labels_of(figure) == ["ER (n=1)"]
    assert "ER, after task 3: 85.00 % (n = 1)" in titles_of(figure)


def test_svg_for_a_page() -> None:
    figure = curves_figure(some_groups("er", "ser"))
    svg = as_svg(figure)
    assert svg.startswith("<svg ")
    root = ET.fromstring(svg)
    assert "viewBox" in root.attrib
    assert not {"width", "height"} & root.attrib.keys()
    for word in ("<?xml", "<!DOCTYPE", "<metadata", "<style", "#000000", "ns0:"):
        assert word not in svg, word
    assert 'fill="currentColor"' in svg
    assert ">tasks learnt</text>" in svg  # text stays text
    assert "#d55e00" in svg  # data keep their colour
    assert not re.search(r'fill: #ffffff"', svg)  # no background
    assert as_svg(figure) == svg
    assert len(svg) < 100_000


@pytest.mark.slow
def test_pictures_in_one_page_share_no_id_and_every_reference_is_kept() -> None:
    figures = dict(all_figures(some_groups("er", "ser", "sgd"), table4()))
    seen: set[str] = set()
    for figure in figures.values():
        svg = as_svg(figure)
        ids = re.findall(r' id="([^"]+)"', svg)
        assert len(ids) == len(set(ids))
        assert not seen & set(ids)
        used = set(re.findall(r'href="#([^"]+)"', svg)) | set(re.findall(r"url\(#([^)]+)\)", svg))
        assert used == set(ids)
        seen |= set(ids)
    assert len(figures) == 6
    # Without names, what they show tells them apart.
    one, two = (as_svg(curves_figure(some_groups(*names))) for names in (("er", "ser"), ("er", "der")))
    assert not set(re.findall(r' id="([^"]+)"', one)) & set(re.findall(r' id="([^"]+)"', two))


@pytest.mark.parametrize("stream", ["a$_{$", "<b>&\"'", "line\nbreak\x01", "ünï cödé"])
def test_names_may_be_anything(stream: str) -> None:
    figures = dict(
        all_figures(group_records([make(stream, 3, stream=stream), make("er", 3, stream=stream)]), [])
    )
    assert len(figures) == 5
    for figure in figures.values():
        assert titles_of(figure)
    if stream.startswith("<b>"):
        assert "<b>&\"'" in ET.fromstring(as_svg(next(iter(figures.values())))).attrib["aria-label"]


def test_names_that_look_alike_as_files_do_not_hide_each_other() -> None:
    records = [make("er", stream=stream) for stream in ("my images", "my-images")]
    assert len(dict(all_figures(group_records(records), []))) == 4


def test_files_are_png_and_svg(tmp_path: Path) -> None:
    groups = some_groups("er", "ser")
    png, svg = save(curves_figure(groups), tmp_path / "new", "curves")
    assert (png.name, svg.name) == ("curves.png", "curves.svg")
    assert png.read_bytes().startswith(b"\x89PNG")
    root = ET.parse(svg).getroot()
    assert {"width", "height", "viewBox"} <= root.attrib.keys()
    assert "fill: #ffffff" in svg.read_text()  # on white: a file does not know its page
    assert root.get("color") == "black"
    drawn = accuracy_curves(groups, tmp_path / "other.svg").read_text()
    assert "<title>SER, after task 1" in drawn
