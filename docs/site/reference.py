"""Pages made from the code: commands by their own help, settings with type and default.

MkDocs calls `on_files`. `CONTRIBUTING.md` and `CHANGELOG.md` of the repository become pages too.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
MEANINGS = {"net.name": "a net of `ser list nets`, or mine.py:function; recipes and `--net` set it"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    pages = {
        "reference/commands.md": commands_page(),
        "reference/settings.md": settings_page(),
        "contributing.md": repository_page("CONTRIBUTING.md"),
        "changelog.md": repository_page("CHANGELOG.md"),
    }
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files


def repository_page(name: str) -> str:
    """A file of the repository; its links into `docs/` are made relative to the site."""
    return (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")


def commands_page() -> str:
    import typer.main

    from strongreplay.cli import app

    lines = ["# Commands", "", "Every command prints the same with `--help`.", ""]
    for name, command in found_commands(typer.main.get_command(app), "ser"):
        lines += [f"## `{name}`", "", paragraphs(command.help or ""), ""]
        rows = [row for parameter in command.params if (row := parameter_row(parameter))]
        if rows:
            lines += ["| argument or option | default | meaning |", "| --- | --- | --- |", *rows, ""]
    return "\n".join(lines)


def found_commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    inside: Mapping[str, Any] = getattr(command, "commands", {})
    if not inside:
        yield name, command
    for word, sub in inside.items():
        yield from found_commands(sub, f"{name} {word}")


def parameter_row(parameter: Any) -> str:
    if parameter.name == "help":
        return ""
    names = (
        parameter.opts
        if parameter.param_type_name == "option"
        else [(parameter.metavar or parameter.name).upper()]
    )
    shown = getattr(parameter, "show_default", None)
    default = shown if isinstance(shown, str) else plain_default(parameter.default)
    cells = [", ".join(f"`{name}`" for name in names), default, getattr(parameter, "help", None) or ""]
    return f"| {' | '.join(escape(cell) for cell in cells)} |"


def plain_default(value: object) -> str:
    return "" if value is None or value is False or callable(value) else f"`{value}`"


def settings_page() -> str:
    from strongreplay.methods.table import METHOD_ROWS
    from strongreplay.models.settings import LearnerConfig
    from strongreplay.runs.config import DataConfig, EvalConfig
    from strongreplay.training.settings import NetConfig, TrainConfig

    lines = [
        "# Settings",
        "",
        "Set any of them with `--set KEY=VALUE`; `none` means that nothing is set.",
        "",
    ]
    sections = {
        "Training": ("train", TrainConfig),
        "Data of a run": ("data", DataConfig),
        "Net": ("net", NetConfig),
        "Evaluation of a run": ("eval", EvalConfig),
        "A kept model (`ser learn`, `Learner`)": ("learner", LearnerConfig),
    }
    for title, (prefix, section) in sections.items():
        lines += [f"## {title}", "", *settings_table(prefix, section), ""]
    for row in METHOD_ROWS.values():
        if table := settings_table("method", row.config):
            lines += [f"## Method `{row.name}` ({row.label})", "", f"{row.about}.", "", *table, ""]
    return "\n".join(lines)


def settings_table(prefix: str, section: Any) -> list[str]:
    fields = section.model_json_schema().get("properties", {})
    if not fields:
        return []
    rows = [
        f"| `{prefix}.{name}` | {escape(type_text(field))} | {default_text(field)} "
        f"| {escape(field.get('description') or MEANINGS[f'{prefix}.{name}'])} |"
        for name, field in fields.items()
    ]
    return ["| setting | type | default | meaning |", "| --- | --- | --- | --- |", *rows]


def type_text(field: Mapping[str, Any]) -> str:
    """A type of JSON Schema in words, with its bounds."""
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(type_text(one) for one in field["anyOf"]))
    if "enum" in field or "const" in field:
        return ", ".join(map(str, field.get("enum", [field.get("const")])))
    bounds = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
    limits = [f"{sign} {field[key]:g}" for key, sign in bounds.items() if key in field]
    kind = {"null": "none", "array": "list", "boolean": "true or false"}.get(field.get("type", ""))
    return " ".join([kind or field.get("type", "value"), *limits])


def default_text(field: Mapping[str, Any]) -> str:
    value = field.get("default")
    if value is None:
        return "none" if "default" in field else "required"
    if value in ([], ""):
        return "empty"
    return f"`{','.join(map(str, value)) if isinstance(value, list) else str(value)}`"


def paragraphs(text: str) -> str:
    return escape_tags("\n".join(line.strip() for line in text.splitlines()))


def escape(text: str) -> str:
    return escape_tags(text).replace("|", "\\|").replace("\n", " ")


def escape_tags(text: str) -> str:
    return text.replace("<", "&lt;")
