"""Workers on other machines: the process that measures connects to one process there for each of its workers.

A connection is a pipe's end over TCP. Both sides prove that they have the key, as in `multiprocessing.connection`; what
they send is not encrypted, and whoever has the key may run any code: as for the cluster itself, the network must be
private. The connections that a backend then makes between its workers are protected by nothing but that.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from dataclasses import replace
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge

from keras_matrix.models.fc.processes.meeting import NotMet
from keras_matrix.models.fc.processes.worker import WorkerStart, started_worker
from keras_matrix.models.fc.worker_group import WorkerSpec
from keras_matrix.records.fc.rendezvous import Site

RETRY_S = 0.1
# Within this time who connects proves that it has the key.
HANDSHAKE_S = 5
# A machine that acknowledges nothing for so long cannot be reached any more: a step may wait longer for a slow one.
UNREACHABLE_S = 60
# What a handshake with another program raises: a wrong key or length, its end, or no answer in time.
NO_WORKER = (AuthenticationError, AssertionError, EOFError, OSError)


def connections(order: WorkerSpec, timeout_s: float) -> list[Connection]:
    """Return a connection to each worker on another machine, by rank. Raises `NotMet`."""
    meeting, until_s = order.rendezvous, time.monotonic() + timeout_s
    if meeting is None:
        return []
    return [
        _connected(site, bytes.fromhex(meeting.key), until_s)
        for site in meeting.sites[1:]
        for _ in range(order.workers_here)
    ]


def _connected(site: Site, key: bytes, until_s: float) -> Connection:
    while True:
        try:
            found = _tuned(socket.create_connection((site.address, site.port), HANDSHAKE_S))
            answer_challenge(found, key)
            deliver_challenge(found, key)
            return _without_limit(found)
        except NO_WORKER as error:  # it does not listen yet
            if time.monotonic() > until_s:
                where = f"{site.name} ({site.address}:{site.port})"
                raise NotMet(f"the workers of {where} cannot be reached: {error or type(error).__name__}") from error
            time.sleep(RETRY_S)


def serve(start: WorkerStart) -> None:
    """Provide this machine's workers until each has ended; `start` is that of the first one of this machine.

    How they end is not judged here: the process that measures ends or loses them. Raises OSError if the port is taken.
    """
    meeting = start.order.rendezvous
    assert meeting is not None
    processes, key = [], bytes.fromhex(meeting.key)
    with socket.create_server((meeting.here.address, meeting.here.port)) as server:
        for rank in range(start.rank, start.rank + start.order.workers_here):
            processes.append(started_worker(replace(start, rank=rank), accepted(server, key), []))
    for process in processes:
        process.join()


def accepted(server: socket.socket, key: bytes) -> Connection:
    """Return the next connection of a process that has the key; others are closed."""
    while True:
        found = _tuned(server.accept()[0])
        with contextlib.suppress(*NO_WORKER):
            deliver_challenge(found, key)
            answer_challenge(found, key)
            return _without_limit(found)
        found.close()


def _tuned(own: socket.socket) -> Connection:
    """Return a socket as a connection with limits: of each answer, and of the time without any acknowledgement."""
    own.settimeout(None)
    own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", HANDSHAKE_S, 0))
    own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    own.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, UNREACHABLE_S // 3)
    own.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, UNREACHABLE_S // 6)
    own.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREACHABLE_S * 1000)
    return Connection(own.detach())


def _without_limit(found: Connection) -> Connection:
    """Return the connection, on which an answer may take as long as a step does."""
    with socket.socket(fileno=found.fileno()) as own:
        own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 0))
        own.detach()
    return found
