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


def influences(lone_records: Sequence[Record], busy_records: Sequence[Record], devices: int) -> list[Influence]:
    """Return the influence on each cell of a self test with a block with both; `devices` worked in `busy_records`."""
    ends = summaries(lone_records), summaries(busy_records)
    measured_influences = []
    for cell_id, cell in ends[0].items():
        logs = log_ratios(ends[1][cell_id], cell) if cell_id in ends[1] else {}
        if (estimate := of_logs([logs[block] for block in sorted(logs)])) is None:
            continue
        settings, first_record = cell.settings, cell.records[0]
        measured_influences.append(
            Influence(
                *(first_record.machine.host_id, settings.device, devices, cell_id, settings.backend, settings.workload),
                *(estimate.centre, estimate.low, estimate.high, estimate.count, first_record.run_id),
            )
        )
    return sorted(measured_influences, key=lambda influence: (influence.workload, influence.backend, influence.cell_id))


def influence_caveat(cell: CellSummary, known_influences: Sequence[Influence]) -> str | None:
    """Return the caveat of a cell that was measured while other GPUs worked, with the influence; else None."""
    placed_records = [record for record in cell.measured if record.gpu_place and record.gpu_place.alongside]
    if not placed_records:
        return None
    share_note = (
        ""
        if len(placed_records) == len(cell.measured)
        else f" in {len(placed_records)} of {len(cell.measured)} processes"
    )
    nearest = _nearest(
        cell,
        [
            known_influence
            for known_influence in known_influences
            if known_influence.host_id == placed_records[0].machine.host_id
        ],
    )
    influence = f": not measured, measure it with {COMMAND}" if nearest is None else _text(nearest, cell)
    return f"measured while other GPUs worked{share_note}; influence by self test{influence}"


def percent_text(influence: Influence) -> str:
    """Return an influence as a change in percent, with its interval: `+1.2 % [0.4 2.0]`."""
    text = percent_change(influence.ratio, influence.low, influence.high)
    return text if influence.low is not None else f"{text} ({influence.blocks} blocks: no interval)"


def _nearest(cell: CellSummary, known_influences: Sequence[Influence]) -> Influence | None:
    """Return the measurement of this cell, or else of its workload, or of another one of its backend and device."""
    settings = cell.settings
    same_device = [
        influence
        for influence in known_influences
        if (influence.device, influence.backend) == (settings.device, settings.backend)
    ]
    same_workload = [influence for influence in same_device if influence.workload == settings.workload]
    of_cell = [influence for influence in same_workload if influence.cell_id == cell.cell_id]
    return max(
        of_cell or same_workload or same_device,
        key=lambda influence: (influence.devices, influence.run_id),
        default=None,
    )


def _text(influence: Influence, cell: CellSummary) -> str:
    work_text = "" if influence.cell_id == cell.cell_id else f" of {influence.workload} ({influence.cell_id})"
    return f"{work_text} with {influence.devices} devices: {percent_text(influence)}"
