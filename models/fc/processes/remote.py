"""Workers on other machines: the process that measures connects to one process there for each of its workers.

A connection is a pipe's end over TCP. Both sides prove that they have the key (`multiprocessing.connection`); what they
send is not encrypted, and whoever has the key may run any code: as for the cluster itself, the network must be private.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener

from keras_matrix.models.fc.processes.meeting import NotMet
from keras_matrix.models.fc.processes.worker import WorkerStart, started
from keras_matrix.models.fc.worker_group import WorkerSpec
from keras_matrix.records.fc.rendezvous import Site

RETRY_S = 0.1


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
            return Client((site.address, site.port), authkey=key)
        except (OSError, EOFError) as error:  # it does not listen yet
            if time.monotonic() > until_s:
                where = f"{site.name} ({site.address}:{site.port})"
                raise NotMet(f"the workers of {where} cannot be reached: {error}") from error
            time.sleep(RETRY_S)


def serve(start: WorkerStart) -> None:
    """Provide this machine's workers until each has ended; `start` is that of the first one of this machine.

    How they end is not judged here: the process that measures ends or loses them. Raises OSError if the port is taken.
    """
    meeting = start.order.rendezvous
    assert meeting is not None
    processes = []
    with Listener((meeting.here.address, meeting.here.port), authkey=bytes.fromhex(meeting.key)) as listener:
        for rank in range(start.rank, start.rank + start.order.workers_here):
            processes.append(started(replace(start, rank=rank), _accepted(listener), []))
    for process in processes:
        process.join()


def _accepted(listener: Listener) -> Connection:
    """Return the next connection of a process that has the key."""
    while True:
        with contextlib.suppress(AuthenticationError, EOFError, ConnectionError):
            return listener.accept()
