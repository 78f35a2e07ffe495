"""The kinds of failure, and the operations to which each applies."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """How an operation fails."""

    KILL = "kill"  # SIGKILL before the operation; of a write, half of it is done
    POWER = "power"  # the same, and everything that was not synced is lost
    CACHE = "cache"  # the same, and of what was not synced a random part is lost
    ENOSPC = "enospc"  # no space is left, from this operation on
    EIO = "eio"  # an input/output error, once
    EAGAIN = "eagain"  # no further process can be started, once
    SIGNAL = "signal"  # SIGINT arrives: Python repeats the call (PEP 475) unless the handler raises, as ours does
    RESET = "reset"  # the peer resets the connection
    BUSY = "http503"  # the service answers 503 and did nothing
    UNANSWERED = "unanswered"  # the service did it, and its answer is lost
    LOST = "lost"  # the node of a cluster is lost, with the process that is called there
    LIMIT = "limit"  # no file can grow beyond N bytes: also the writes of libraries fail, in the middle of a file
    CUT = "cut"  # the same limit ends the process (SIGXFSZ), in the middle of a file

    @property
    def kills(self) -> bool:
        """Whether the process ends at once."""
        return self in (Kind.KILL, Kind.POWER, Kind.CACHE, Kind.CUT)

    @property
    def limits(self) -> bool:
        """Whether its number is not that of an operation, but the largest size of a file."""
        return self in (Kind.LIMIT, Kind.CUT)

    @property
    def errno(self) -> int | None:
        """The error number that the operation fails with."""
        return {
            Kind.ENOSPC: errno.ENOSPC,
            Kind.EIO: errno.EIO,
            Kind.EAGAIN: errno.EAGAIN,
            Kind.RESET: errno.ECONNRESET,
        }.get(self)


@dataclass(frozen=True, slots=True)
class Failure:
    """The failure of the operation with this number, from 1; of a limit the number of bytes."""

    kind: Kind
    number: int


GROWING = frozenset({"create", "fsync", "link", "mkdir", "symlink", "write"})
CHANGING = GROWING | {"append", "remove", "rename", "replace", "rmdir", "truncate", "unlink", "utime"}
READING = frozenset({"flock", "listdir", "lstat", "open", "read", "scandir", "stat"})
STARTING = frozenset({"exec", "fork"})
PROCESSES = STARTING | {"kill", "wait"}
SOCKETS = frozenset({"connect", "receive", "send"})
REQUESTS = frozenset({"request"})
CALLS = frozenset({"call"})  # of agents on a cluster
PERSISTENT = (Kind.ENOSPC,)

_APPLIES = {
    Kind.KILL: CHANGING | PROCESSES | SOCKETS | REQUESTS | CALLS,
    Kind.POWER: CHANGING,
    Kind.CACHE: CHANGING,
    Kind.ENOSPC: GROWING,
    Kind.EIO: CHANGING | READING,
    Kind.EAGAIN: STARTING,
    Kind.SIGNAL: CHANGING | PROCESSES | SOCKETS | REQUESTS | CALLS,
    Kind.RESET: SOCKETS | CALLS,
    Kind.BUSY: REQUESTS,
    Kind.UNANSWERED: REQUESTS | CALLS,
    Kind.LOST: CALLS,
}


def applies(kind: Kind, operation: str) -> bool:
    """Return whether an operation can fail in this way."""
    return operation in _APPLIES.get(kind, frozenset())
