"""Inspect a kept model: status, history, differences between versions, evaluation on labelled data.

Everything is a frozen dataclass with a `to_dict` for JSON. Nothing here prints.
"""

from strongreplay.models.inspect.diff import VersionDiff, diff_versions
from strongreplay.models.inspect.evaluation import Answers, Evaluation, collect_answers, evaluate_versions
from strongreplay.models.inspect.history import HistoryEntry, read_history
from strongreplay.models.inspect.status import ModelStatus, list_ancestors, read_status
from strongreplay.models.inspect.timeline import ClassLine, read_timeline

__all__ = [
    "Answers", "ClassLine", "Evaluation", "HistoryEntry", "ModelStatus", "VersionDiff",
    "collect_answers", "diff_versions", "evaluate_versions", "list_ancestors", "read_history", "read_status",
    "read_timeline",
]  # fmt: skip
