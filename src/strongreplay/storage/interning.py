"""Interner: many records in little memory; their equal parts are stored once. Does not import torch."""

import json
from typing import Any

from strongreplay.storage.records import RunRecord

COMMON = ("versions", "hardware")  # of what was measured: the same for all runs on a machine


class Interner:
    """Rebuilds records from parts that it has seen before; these are shared and must not be changed.

    Scores are shares of a test set, so even the numbers of accuracy matrices come again and again. Loss terms
    are left out: no table or figure shows them, and they are half of a record.
    """

    def __init__(self) -> None:
        self.leaves: dict[Any, Any] = {}  # texts, and numbers that are no integers
        self.sections: dict[str, Any] = {}  # by their JSON text

    def slim(self, record: RunRecord) -> RunRecord:
        config = {self.leaf(key): self.section(value) for key, value in record.config.items()}
        results = {key: self.parts(value) for key, value in record.results.items() if key != "terms"}
        measured = {
            self.leaf(key): self.section(value) if key in COMMON else self.names(value)
            for key, value in record.measured.items()
        }
        return RunRecord(config, results, measured, record.format)

    def leaf(self, value: Any) -> Any:
        # Not 0.0, which equals -0.0, and not 1, which equals 1.0 and True.
        return self.leaves.setdefault(value, value) if isinstance(value, str | float) and value else value

    def section(self, node: Any) -> Any:
        """A whole part of a record that others have too."""
        if not isinstance(node, dict | list):
            return self.leaf(node)
        return self.sections.setdefault(json.dumps(node), node)

    def parts(self, node: Any) -> Any:
        """The same tree, with shared texts and numbers."""
        if isinstance(node, dict):
            return {self.leaf(key): self.parts(value) for key, value in node.items()}
        if not isinstance(node, list):
            return self.leaf(node)
        if node and isinstance(node[0], dict | list):
            return [self.parts(value) for value in node]
        share = self.leaves.setdefault  # a row of numbers: hundreds of thousands of them come here
        return [share(value, value) if type(value) is float and value else value for value in node]

    def names(self, node: Any) -> Any:
        """The same tree, with shared keys; its numbers are those of one run."""
        if not isinstance(node, dict):
            return node
        return {self.leaf(key): self.names(value) for key, value in node.items()}
