"""Joining a network namespace: a worker's process leaves this machine's network for one that `ci/netns` made.

Promise: only the calling thread and those it begins later change networks; the pipes to whoever forked it and
the file where workers meet are not of a network, and stay.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

FOLDER = Path("/run/netns")
CLONE_NEWNET = 0x40000000


class NoSuchNetwork(Exception):
    """A network namespace cannot be joined; the message says which, why, and what to do."""


def enter(name: str, folder: Path = FOLDER) -> None:
    """Join the namespace of that name. Raises `NoSuchNetwork`."""
    try:
        with (folder / name).open("rb") as namespace:
            _set(namespace.fileno())
    except OSError as error:
        raise NoSuchNetwork(
            f"network namespace {name}: cannot be joined: {error.strerror}; it takes root, and a ci/netns that still "
            "runs"
        ) from error


def own_network() -> str:
    """Return what names this process's network among all of this machine, such as `net:[4026532281]`."""
    return str(Path("/proc/thread-self/ns/net").readlink())


def _set(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)  # os.setns is there from Python 3.12 on
    if libc.setns(descriptor, CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
