"""The one table of methods: readable without torch, and the only place for labels, order and colours."""

import re
import subprocess
import sys

import pytest
from support.repository import in_repository
from support.tiny_stream import make_net, make_problem
from torch import nn
from torch.optim import Optimizer

from strongreplay.data.streams import Stream
from strongreplay.methods import METHODS
from strongreplay.methods.base import Method, MethodConfig, ReplayConfig
from strongreplay.methods.row import row_of_class
from strongreplay.methods.table import (
    COLOURS,
    METHOD_ROWS,
    method_label,
    style_number,
)
from strongreplay.protocol import Batch, Problem, Terms


def test_the_table_is_read_without_torch() -> None:
    code = "import sys; from strongreplay.methods.table import METHOD_ROWS; assert METHOD_ROWS['ser'].label; "
    code += "import strongreplay.report.styles, strongreplay.runs.paper; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("row", METHOD_ROWS.values(), ids=list(METHOD_ROWS))
def test_every_row_is_whole_and_its_class_and_settings_are_found(row: object) -> None:
    assert row in METHODS.values()
    found = METHODS[row.name]  # type: ignore[attr-defined]
    assert issubclass(found.method_class, Method)
    assert issubclass(found.config, MethodConfig)
    assert found.config.__name__ == f"{found.method_class.__name__}Config"
    assert all((found.label, found.about, found.family, found.paper, found.passes))
    assert found.needs_boundaries == ("boundaries" in found.needs)


def test_labels_and_styles_are_different() -> None:
    assert len({row.label for row in METHOD_ROWS.values()}) == len(METHOD_ROWS)
    assert sorted(row.style or 0 for row in METHOD_ROWS.values()) == list(range(len(METHOD_ROWS)))
    assert len(set(COLOURS)) == 8


def test_a_users_method_has_a_label_and_a_colour_of_its_own() -> None:
    assert method_label("mine.py:ERACE") == "ERACE"
    assert method_label("derpp") == "DER++"
    assert style_number("mine.py:ERACE") == style_number("mine.py:ERACE") >= len(METHOD_ROWS)


class Plain(Method):
    """Learns nothing.

    More about it.
    """

    def __init__(self, net: nn.Module, problem: Problem) -> None:
        super().__init__()
        self.net = net

    def observe(self, batch: Batch, optimizer: Optimizer) -> Terms:
        return {}


class Nested(Plain):
    label = "NEST-1"
    needs = ("boundaries",)
    cost = 2.5

    class Config(ReplayConfig):
        gamma: float = 0.5


class NamedConfig(MethodConfig):
    delta: int = 1


class Named(Plain):
    def __init__(self, net: nn.Module, problem: Problem, settings: NamedConfig | None = None) -> None:
        super().__init__(net, problem)


class SettingsOfAnotherName(MethodConfig):
    theta: int = 1


class Annotated(Plain):
    def __init__(self, net: nn.Module, problem: Problem, config: SettingsOfAnotherName | None = None) -> None:
        super().__init__(net, problem)


def test_the_row_of_a_class_takes_what_the_class_says(stream: Stream) -> None:
    plain, nested = row_of_class("m.py:Plain", Plain, "ab"), row_of_class("m.py:Nested", Nested, "cd")
    assert (plain.label, plain.about, plain.source_hash) == ("Plain", "Learns nothing.", "ab")
    assert (nested.label, nested.needs, nested.cost, nested.needs_boundaries) == (
        "NEST-1", ("boundaries",), 2.5, True
    )  # fmt: skip
    assert plain.config is MethodConfig
    assert not plain.has_memory
    assert nested.config is Nested.Config
    assert nested.has_memory
    assert row_of_class("m.py:Named", Named, None).config is NamedConfig
    assert row_of_class("m.py:Annotated", Annotated, None).config is SettingsOfAnotherName
    built = plain.build(make_net(), make_problem(stream), plain.config())
    assert isinstance(built, Plain)


def test_the_page_of_methods_says_what_the_table_says() -> None:
    text = in_repository("docs/methods.md").read_text().split("## Known differences")[0]
    rows = re.findall(r"^\| `([\w-]+)` \| (.*) \|$", text, flags=re.M)
    found = {name: cells.split(" | ") for name, cells in rows}
    for row in METHOD_ROWS.values():
        titles = {"class-il": "Class-IL", "task-il": "Task-IL"}
        applies = "all" if len(row.scenarios) == 3 else ", ".join(titles[name] for name in row.scenarios)
        assert found[row.name] == [row.about, row.keeps, row.passes, applies, row.paper]
    assert len(found) == len(METHOD_ROWS)
