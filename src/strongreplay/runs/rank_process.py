"""Further ranks of a run: the processes that `launch_ranks.py` or torchrun starts."""

import json
import os
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from strongreplay.errors import SerError
from strongreplay.runs.config import RunConfig, config_of
from strongreplay.runs.grid import RunOptions, explain_failure, sort_out
from strongreplay.runs.launch_ranks import READY
from strongreplay.runs.run import Interrupted, run, run_here
from strongreplay.training.events import Listener
from strongreplay.training.parallel import LostRank, Ranks, join_file


class StopSignal(Listener):
    """Asks for a stop after SIGTERM. Ctrl-C goes to the first rank too, which asks for it there."""

    def __init__(self) -> None:
        self.asked = False
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, self.ask)

    def ask(self, number: int, frame: Any) -> None:
        self.asked = True

    def wants_stop(self) -> bool:
        return self.asked


def main() -> int:
    """Make the run that the input describes; returns the exit code."""
    listener, spec = StopSignal(), json.loads(sys.stdin.readline())
    threading.Thread(target=end_with_the_first_rank, daemon=True).start()
    folder, out = (Path(spec[key]) if spec[key] else None for key in ("folder", "out"))
    torch.set_num_threads(spec["threads"])
    try:
        config = config_of(spec["config"], spec["source"])
        say(READY)
        ranks, device = join_file(Path(spec["meeting"]), spec["rank"], spec["size"], spec["device"])
        run_here(config, folder, device, ranks, [listener], out, resume=spec["resume"])
    except Interrupted:
        return 0
    except LostRank:
        return 1
    except Exception as error:
        reason = str(error) if isinstance(error, SerError) else explain_failure(error)
        say(f"rank {spec['rank']}: {reason or repr(error)}".replace("\n", "; "))
        if not reason:
            raise  # a fault of ours, whose traceback is needed
        return 1
    return 0


def run_under_torchrun(
    configs: list[RunConfig], options: RunOptions, ranks: Ranks, threads: int | None, again: bool
) -> None:
    """Make the runs that the first rank of torchrun makes; it alone reports and writes."""
    listener = StopSignal()
    ranks.wait_for_all()  # the first rank knows which runs are recorded
    absent = configs if again else [job.config for job in sort_out(configs, options.out)[1]]
    if threads:
        torch.set_num_threads(threads)
    with suppress(Interrupted):
        for config in absent:
            run(
                config,
                folder=options.data,
                device=options.device,
                listeners=[listener],
                out=options.out,
                resume=True,
            )


def end_with_the_first_rank() -> None:
    # Not sys.stdin: a thread that holds its lock aborts Python when it shuts down.
    while os.read(0, 1):
        pass
    os._exit(1)


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)
