"""Checks for a user's own classes: `check_method`, `check_net`, `check_stream`, `check_listener`.

    from strongreplay.testing import check_method
    check_method(MyMethod)

Each check trains on a small stream of three tasks, takes seconds and needs no pytest. A broken contract
raises a ContractError that says which one and how to fix it. The methods of this package pass the same
checks.
"""

from strongreplay.testing.case import NUM_CLASSES, ContractError, MethodCase, small_stream
from strongreplay.testing.device import check_device
from strongreplay.testing.listeners import check_listener
from strongreplay.testing.methods import METHOD_CHECKS, check_method
from strongreplay.testing.nets import check_net
from strongreplay.testing.streams import check_stream

__all__ = [
    "METHOD_CHECKS",
    "NUM_CLASSES",
    "ContractError",
    "MethodCase",
    "check_device",
    "check_listener",
    "check_method",
    "check_net",
    "check_stream",
    "small_stream",
]
