"""Where the workers of a cell meet that is divided among several machines, as the executor arranges it. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Site:
    """A machine of a cell: its name for people, its `host_id` in records, and the address where the others reach it.

    `port` is where it waits for the process that measures; 0 on the machine of that process.
    """

    name: str
    host_id: str
    address: str
    port: int = 0


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """The machines of a cell, in the order of their workers' ranks; the first one measures.

    `index` is the machine of this process. Only who has `key`, in hexadecimal digits, may connect.
    """

    sites: list[Site]
    key: str
    index: int = 0

    @property
    def here(self) -> Site:
        """The machine of this process."""
        return self.sites[self.index]

    @property
    def measures(self) -> bool:
        """Whether this process measures, and does not only provide workers."""
        return self.index == 0
