"""What workers send to each other, counted in bytes.

Bytes are the payload, those that all workers together have to send: for n workers a sum of m bytes that all get takes 2
(n - 1) m, one that is left in pieces (n - 1) m, and as much the gathering of pieces that make m bytes. (Patarasuk and
Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009.) Where groups of workers do so, n is
a group's; what one hands to another takes its m. An algorithm may send more: `records.fc.spec.wire_bytes_per_step`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Traffic:
    """What one worker took part in during one step: bytes of the whole arrays that were summed, scattered, gathered.

    Of collectives among groups of workers: what all groups together have to send. What a worker handed to another is
    its own, until `together` adds it up. `calls` are collectives of both sorts.
    """

    all_reduce_bytes: int = 0
    reduce_scatter_bytes: int = 0
    all_gather_bytes: int = 0
    calls: int = 0
    group_sent_bytes: int = 0
    handed_bytes: int = 0
    hand_overs: int = 0

    def sent_bytes(self, workers: int) -> int:
        """Return the bytes that all workers together have to send."""
        whole = 2 * self.all_reduce_bytes + self.reduce_scatter_bytes + self.all_gather_bytes
        return (workers - 1) * whole + self.group_sent_bytes + self.handed_bytes


def together(found: Sequence[Traffic]) -> Traffic:
    """Return what all workers counted. Raises `RuntimeError` where they took part in different collectives."""
    alike = {replace(own, handed_bytes=0, hand_overs=0) for own in found}
    if len(alike) != 1:
        raise RuntimeError(f"the workers took part in different collectives: {found}")
    handed = sum(own.handed_bytes for own in found)
    return replace(alike.pop(), handed_bytes=handed, hand_overs=sum(own.hand_overs for own in found))
