"""The communication of workers, counted in bytes.

Bytes are the payload that all workers together must send: for n workers and an array of m bytes, an all-reduce takes
2 (n - 1) m, a reduce-scatter (n - 1) m, and an all-gather of pieces that make up m bytes (n - 1) m. (Patarasuk and
Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009.) In groups of workers, n is the size
of the group; a point-to-point transfer takes m. An algorithm may send more: `records.fc.spec.wire_bytes_per_step`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Traffic:
    """The communication of one worker in one step: bytes of the complete arrays that were summed, scattered, gathered.

    `group_sent_bytes` is what all groups of workers together must send. `handed_bytes` counts this worker's transfers
    to others, until `together` adds them up. `calls` are all collectives, also those of groups.
    """

    all_reduce_bytes: int = 0
    reduce_scatter_bytes: int = 0
    all_gather_bytes: int = 0
    calls: int = 0
    group_sent_bytes: int = 0
    handed_bytes: int = 0
    hand_overs: int = 0

    def sent_bytes(self, workers: int) -> int:
        """Return the bytes that all workers together must send."""
        arrays = 2 * self.all_reduce_bytes + self.reduce_scatter_bytes + self.all_gather_bytes
        return (workers - 1) * arrays + self.group_sent_bytes + self.handed_bytes


def together(found: Sequence[Traffic]) -> Traffic:
    """Return the counts of all workers. Raises `RuntimeError` if they took part in different collectives."""
    alike = {replace(own, handed_bytes=0, hand_overs=0) for own in found}
    if len(alike) != 1:
        raise RuntimeError(f"the workers took part in different collectives: {found}")
    handed = sum(own.handed_bytes for own in found)
    return replace(alike.pop(), handed_bytes=handed, hand_overs=sum(own.hand_overs for own in found))
