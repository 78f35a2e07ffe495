"""The influence of a machine's other devices on cells that are measured at the same time on several of them.

It is measured by a self test in which a cell runs alternately with the other devices at rest and at work, block by
block; one block gives one log ratio. Guarantee: pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from keras_matrix.analysis.comparison.table import CellSummary, log_ratios, summaries
from keras_matrix.analysis.stats.blocks import of_logs
from keras_matrix.records.instruments.influence import Influence
from keras_matrix.records.schema import Record
from keras_matrix.records.text import percent_change

COMMAND = "runner selftest --parallel-devices"


def influences(alone: Sequence[Record], busy: Sequence[Record], devices: int) -> list[Influence]:
    """Return the influence on each cell of a self test that has a block with both; `devices` worked in `busy`."""
    ends = summaries(alone), summaries(busy)
    found = []
    for cell_id, cell in ends[0].items():
        logs = log_ratios(ends[1][cell_id], cell) if cell_id in ends[1] else {}
        if (estimate := of_logs([logs[block] for block in sorted(logs)])) is None:
            continue
        settings, first = cell.settings, cell.records[0]
        found.append(
            Influence(
                *(first.machine.host_id, settings.device, devices, cell_id, settings.backend, settings.workload),
                *(estimate.centre, estimate.low, estimate.high, estimate.count, first.run_id),
            )
        )
    return sorted(found, key=lambda one: (one.workload, one.backend, one.cell_id))


def influence_caveat(cell: CellSummary, known: Sequence[Influence]) -> str | None:
    """Return the caveat of a cell that was measured while other GPUs worked, with the influence; else None."""
    placed = [record for record in cell.measured if record.gpu_place and record.gpu_place.alongside]
    if not placed:
        return None
    share = "" if len(placed) == len(cell.measured) else f" in {len(placed)} of {len(cell.measured)} processes"
    found = _nearest(cell, [one for one in known if one.host_id == placed[0].machine.host_id])
    influence = f": not measured, measure it with {COMMAND}" if found is None else _text(found, cell)
    return f"measured while other GPUs worked{share}; influence by self test{influence}"


def percent_text(one: Influence) -> str:
    """Return an influence as a change in percent, with its interval: `+1.2 % [0.4 2.0]`."""
    text = percent_change(one.ratio, one.low, one.high)
    return text if one.low is not None else f"{text} ({one.blocks} blocks: no interval)"


def _nearest(cell: CellSummary, known: Sequence[Influence]) -> Influence | None:
    """Return the measurement of this cell, or else of its workload, or of another one of its backend and device."""
    settings = cell.settings
    same = [one for one in known if (one.device, one.backend) == (settings.device, settings.backend)]
    near = [one for one in same if one.workload == settings.workload]
    own = [one for one in near if one.cell_id == cell.cell_id]
    return max(own or near or same, key=lambda one: (one.devices, one.run_id), default=None)


def _text(one: Influence, cell: CellSummary) -> str:
    whose = "" if one.cell_id == cell.cell_id else f" of {one.workload} ({one.cell_id})"
    return f"{whose} with {one.devices} devices: {percent_text(one)}"
