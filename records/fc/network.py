"""Where the workers of a cell run and meet: network namespaces on one machine, or the machines of a divided cell. Pure.

The namespaces are those that `ci/netns` creates for worker processes, as read from an environment variable. Its value
is the rate of the links and the namespaces, separated by blanks: `200mbit kbm-net-71-0 kbm-net-71-1`. The machines, and
where their workers meet, are as the executor arranges them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

VARIABLE = "KERAS_BENCHMARK_NETWORK"
# The name of each namespace's end of a link.
INTERFACE = "link"
RATE = re.compile(r"([1-9][0-9]{0,8})([kmg])bit", re.ASCII)
UNITS = {"k": 10**3, "m": 10**6, "g": 10**9}


@dataclass(frozen=True, slots=True)
class Network:
    """Namespaces whose links are limited to a rate in the syntax of `tc`."""

    rate: str
    namespaces: tuple[str, ...]


def parse(text: str) -> Network | None:
    """Return the network that the variable's text names, None if it is empty."""
    rate, *namespaces = text.split() or [""]
    return Network(rate, tuple(namespaces)) if rate else None


def normal_rate(text: str) -> str | None:
    """Return a rate in the largest unit that makes it an integer (1gbit for 1000mbit); None if it is not a rate."""
    if (match := RATE.fullmatch(text)) is None:
        return None
    number, unit = int(match[1]), "kmg".index(match[2])
    while unit < 2 and number % 1000 == 0:
        number, unit = number // 1000, unit + 1
    return f"{number}{'kmg'[unit]}bit"


def bits_per_s(text: str) -> float | None:
    """Return a rate in bits a second; None if it is not a rate, such as for workers on one machine."""
    match = RATE.fullmatch(text)
    return float(match[1]) * UNITS[match[2]] if match else None


def network_problem(network: Network | None, rate: str, workers: int) -> str | None:
    """Return why these namespaces do not suffice for this rate and number of workers, None if they do."""
    advice = f"start the runner in: ci/netns {workers} --rate {rate} -- runner ..."
    if network is None:
        return f"network: no namespaces with links of {rate} exist; {advice}"
    if normal_rate(network.rate) != normal_rate(rate):
        return f"network: the links have a rate of {network.rate}, not {rate}; {advice}"
    if len(network.namespaces) < workers:
        return f"network: {len(network.namespaces)} namespaces exist for {workers} workers; {advice}"
    return None


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
