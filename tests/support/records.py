"""Records made up for tables and figures."""

from strongreplay.storage.records import (
    RunRecord,
)


def make_record(method: str = "ser", seed: int = 0, accuracy: float = 80.0, **settings: object) -> RunRecord:
    scores = {"matrix": [[90.0, None], [accuracy - 10, accuracy + 10]], "average_accuracy": accuracy}
    scores |= {
        "untrained": [50.0, 50.0],
        "forgetting": 20.0,
        "backward_transfer": -20.0,
        "forward_transfer": None,
    }
    config = {
        "stream": "s",
        "seed": seed,
        "method": {"name": method, "memory_size": 50, **settings},
        "train": {"lr": 1},
    }
    return RunRecord(
        config, {"accuracy": {"class-il": scores, "task-il": scores}, "terms": []}, {"phases": {}}
    )
