"""Work in a forked process, which may be killed."""

import os
import signal
import time
from collections.abc import Callable


def in_a_process(work: Callable[[], object], kill_after: float | None = None) -> int:
    """The exit code of a forked process, or minus the signal that ended it."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
