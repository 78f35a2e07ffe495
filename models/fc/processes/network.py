"""Lets a worker process join a network namespace that `ci/netns` created, and learn the addresses of the others.

Only the calling thread and those that it starts later change networks; the pipes to the parent process and the files by
which workers meet do not depend on the network.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
from pathlib import Path

FOLDER = Path("/run/netns")
CLONE_NEWUTS, CLONE_NEWNET = 0x04000000, 0x40000000
SIOCGIFADDR = 0x8915  # ioctl: the IPv4 address of an interface (linux/sockios.h)


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
    libc = ctypes.CDLL(None, use_errno=True)  # os.unshare needs Python 3.12
    try:
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
    libc = ctypes.CDLL(None, use_errno=True)  # os.setns needs Python 3.12
    _checked(libc.setns(descriptor, CLONE_NEWNET))


def _checked(answer: int) -> None:
    """Raise the error of a failed call of libc."""
    if answer != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
