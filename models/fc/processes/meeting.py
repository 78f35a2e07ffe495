"""How a worker process learns where the others are, before the backend connects them."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace

from keras_matrix.models.fc.processes import network
from keras_matrix.models.fc.worker_group import WorkerSpec
from keras_matrix.records.fc.network import INTERFACE
from keras_matrix.records.fc.spec import WorkerPlacement

LOOPBACK = "127.0.0.1"
LOOPBACK_INTERFACE = "lo"


class NotMet(Exception):
    """The workers did not all connect in time."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """A worker's place among the others, and the messages by which they find each other.

    `file` is one that all workers can read and write, None if they are on several machines. `exchanged` takes this
    worker's message and returns those of all, by rank; it raises `NotMet`.
    """

    order: WorkerSpec
    rank: int
    timeout_s: float
    file: str | None
    exchanged: Callable[[str], list[str]]

    @property
    def here(self) -> tuple[int, int]:
        """This worker's number among those of its machine, and how many these are."""
        return self.rank % self.order.workers_here, self.order.workers_here

    def address(self) -> str:
        """Return the address at which the other workers reach this one. Raises `NoSuchNetwork`."""
        if self.order.namespaces:
            return network.address_of(INTERFACE)
        return LOOPBACK if self.order.rendezvous is None else self.order.rendezvous.here.address

    def interface(self) -> str:
        """Return the name of the interface with that address. Raises `NoSuchNetwork`."""
        if self.order.namespaces:
            return INTERFACE
        return LOOPBACK_INTERFACE if self.order.rendezvous is None else network.interface_of(self.address())

    def name_host(self) -> None:
        """Let this host's own name mean that address, for a library that looks it up. Raises `NoSuchNetwork`."""
        address = self.address()
        if self.order.namespaces:
            network.name_host(address)
        elif address != LOOPBACK and _named(socket.gethostname()) != address:
            advice = f"let it mean {address} in /etc/hosts of the node, or start it as root with CAP_SYS_ADMIN"
            network.name_host(address, f"{advice}: the name {socket.gethostname()} has another address")


def located(place: WorkerPlacement, order: WorkerSpec, rank: int) -> WorkerPlacement:
    """Return the placement of a worker of this process, with its process, its network and its machine."""
    machine = order.rendezvous.sites[rank // order.workers_here].host_id if order.rendezvous else None
    own = network.own_network() if order.namespaces else None
    return replace(place, process=os.getpid(), network=own, machine=machine)


def _named(host: str) -> str | None:
    try:
        return socket.gethostbyname(host)
    except OSError:
        return None
