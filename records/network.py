"""Network namespaces for workers that are processes, as `ci/netns` names them to whoever measures inside it.

One variable holds the rate of the links and the namespaces, apart by blanks: `200mbit kbm-net-71-0 kbm-net-71-1`.
"""

from __future__ import annotations

from dataclasses import dataclass

VARIABLE = "KERAS_BENCHMARK_NETWORK"
# What each namespace calls its own end of a link.
INTERFACE = "link"


@dataclass(frozen=True, slots=True)
class Network:
    """Namespaces whose links are held to a rate, spelt as `tc` does."""

    rate: str
    namespaces: tuple[str, ...]


def parse(text: str) -> Network | None:
    """Return what the variable's text names, None where it is empty."""
    rate, *namespaces = text.split() or [""]
    return Network(rate, tuple(namespaces)) if rate else None


def shortfall(found: Network | None, rate: str, workers: int) -> str | None:
    """Return why these namespaces do not serve so many workers at this rate, None where they do."""
    advice = f"start the runner in: ci/netns {workers} --rate {rate} -- runner ..."
    if found is None:
        return f"network: there are no namespaces with links of {rate}; {advice}"
    if found.rate != rate:
        return f"network: the links here are of {found.rate}, not {rate}; {advice}"
    if len(found.namespaces) < workers:
        return f"network: there are {len(found.namespaces)} namespaces for {workers} workers; {advice}"
    return None
