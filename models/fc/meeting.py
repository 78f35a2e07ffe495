"""How a worker process finds the others before the backend connects them, also in a network namespace of its own.

`ci/netns` creates the namespaces.
Only the calling thread and those that it starts later change networks; the pipes to the parent process and the files by
which workers meet do not depend on the network.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from keras_matrix.models.fc.worker_group import WorkerSpec
from keras_matrix.records.fc.network import INTERFACE
from keras_matrix.records.fc.spec import WorkerPlacement
from keras_matrix.records.host.platform import PLATFORM, Facility

LOOPBACK = "127.0.0.1"
LOOPBACK_INTERFACE = PLATFORM.loopback
FOLDER = Path("/run/netns")
CLONE_NEWUTS, CLONE_NEWNET = 0x04000000, 0x40000000
SIOCGIFADDR = 0x8915  # ioctl: the IPv4 address of an interface (linux/sockios.h)


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
            return address_of(INTERFACE)
        return LOOPBACK if self.order.rendezvous is None else self.order.rendezvous.here.address

    def interface(self) -> str:
        """Return the name of the interface with that address. Raises `NoSuchNetwork`."""
        if self.order.namespaces:
            return INTERFACE
        return LOOPBACK_INTERFACE if self.order.rendezvous is None else interface_of(self.address())

    def name_host(self) -> None:
        """Let this host's own name mean that address, for a library that looks it up. Raises `NoSuchNetwork`."""
        address = self.address()
        if self.order.namespaces:
            name_host(address)
        elif address != LOOPBACK and _named(socket.gethostname()) != address:
            advice = f"let it mean {address} in /etc/hosts of the node, or start it as root with CAP_SYS_ADMIN"
            name_host(address, f"{advice}: the name {socket.gethostname()} has another address")


def located(place: WorkerPlacement, order: WorkerSpec, rank: int) -> WorkerPlacement:
    """Return the placement of a worker of this process, with its process, its network and its machine."""
    machine = order.rendezvous.sites[rank // order.workers_here].host_id if order.rendezvous else None
    local_network = own_network() if order.namespaces else None
    return replace(place, process=os.getpid(), network=local_network, machine=machine)


def _named(host: str) -> str | None:
    try:
        return socket.gethostbyname(host)
    except OSError:
        return None


class NoSuchNetwork(Exception):
    """A network namespace cannot be joined; the message says which one, why, and what to do."""


def enter(name: str, folder: Path = FOLDER) -> None:
    """Join the namespace `name`. Raises `NoSuchNetwork`."""
    try:
        with (folder / name).open("rb") as namespace:
            _set(namespace.fileno())
    except OSError as error:
        advice = "run as root, while ci/netns runs"
        raise NoSuchNetwork(f"network namespace {name}: cannot be joined: {error.strerror}; {advice}") from error


def own_network() -> str:
    """Return the identifier of this process's network on this machine, such as `net:[4026532281]`."""
    return str(Path("/proc/thread-self/ns/net").readlink())


def address_of(interface: str) -> str:
    """Return the IPv4 address of an interface of this process's network. Raises `NoSuchNetwork`."""
    request = struct.pack("256s", interface.encode()[:15])
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            answer = fcntl.ioctl(any_socket.fileno(), SIOCGIFADDR, request)
    except OSError as error:
        advice = "start the runner in ci/netns"
        raise NoSuchNetwork(f"interface {interface}: has no IPv4 address: {error.strerror}; {advice}") from error
    return socket.inet_ntoa(answer[20:24])


def interface_of(address: str) -> str:
    """Return the interface of this process's network that has an IPv4 address. Raises `NoSuchNetwork`."""
    names = [name for _, name in socket.if_nameindex()]
    for name in names:
        try:
            if address_of(name) == address:
                return name
        except NoSuchNetwork:
            continue
    advice = "start the node with an address of its own machine"
    raise NoSuchNetwork(f"address {address}: no interface ({', '.join(names)}) has it; {advice}")


def name_host(name: str, advice: str = "run as root") -> None:
    """Give this process's host a name that no other process sees. Raises `NoSuchNetwork`.

    A library that resolves the host's own name finds in a network namespace an address of another network, or none; if
    the name is an address, it finds that one, without any file.
    """
    try:
        libc = _libc()  # os.unshare needs Python 3.12
        _checked(libc.unshare(CLONE_NEWUTS))
        socket.sethostname(name)
    except OSError as error:
        raise NoSuchNetwork(f"host name {name}: cannot be set: {error.strerror}; {advice}") from error


def free_port(address: str) -> int:
    """Return a port of an address that no process listens to. In a namespace only its own worker takes one."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as bound:
        bound.bind((address, 0))
        return int(bound.getsockname()[1])


def _set(descriptor: int) -> None:
    libc = _libc()  # os.setns needs Python 3.12
    _checked(libc.setns(descriptor, CLONE_NEWNET))


def _libc() -> ctypes.CDLL:
    """Return the C library with the calls of namespaces(7). Raises OSError if the system has none."""
    if why := PLATFORM.lacks(Facility.NAMESPACES):
        raise OSError(errno.ENOSYS, why)
    return ctypes.CDLL(None, use_errno=True)


def _checked(answer: int) -> None:
    """Raise the error of a failed call of libc."""
    if answer != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
