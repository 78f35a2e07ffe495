"""The verdict of `runner reproduce` as text."""

from __future__ import annotations

from collections.abc import Sequence

from keras_matrix.analysis.comparison.primary_metric import Figure, figure_value
from keras_matrix.analysis.comparison.ratios import bracketed
from keras_matrix.analysis.regression.reproduction import NEW, STORED, Reproduction, Verdict
from keras_matrix.analysis.stats.blocks import geometric
from keras_matrix.records.schema import Record, Status
from keras_matrix.records.text import amount, number, percentage, printable
from keras_matrix.runner.matrix.settings_text import settings_text


def lines(found: Reproduction, figure: Figure, stored: Sequence[Record], new: Sequence[Record]) -> list[str]:
    """Return the lines: both figures, the verdict, and what has changed since."""
    first = stored[0]
    said = [f"{settings_text(first.settings)} on {first.settings.backend}, cell {first.cell_id}"]
    for name, side in ((STORED, stored), (NEW, new)):
        said.append(f"{name + ':':16} {_side(side, figure)}")
    said += ["", _verdict(found)]
    said += [f"losses: {_losses(found.loss)}"] if found.loss is not None else []
    said += [f"changed since: {line}" for line in found.changed]
    said += [f"caveat: {line}" for line in found.caveats]
    return [printable(line) for line in said]


def _side(records: Sequence[Record], figure: Figure) -> str:
    values = [value for record in records if record.status is Status.OK and (value := figure_value(record))]
    mean = geometric(values)
    failed = [f"{record.status}: {record.reason}" for record in records if record.status is not Status.OK]
    text = (
        f"{figure.name} {amount(mean.centre if mean else None, figure.unit)}, {len(values)} of {len(records)} processes"
    )
    return f"{text}; {failed[0]}" if failed else text


def _verdict(found: Reproduction) -> str:
    if found.ratio is None or found.work is not None:
        return f"{found.verdict}: {found.work or 'a side has no process that ended ok'}"
    ratio = f"new / stored {bracketed(found.ratio)}"
    if found.ratio.bounds is None:
        return f"{found.verdict}: there is no interval, which takes two processes on each side that ended ok: {ratio}"
    tolerated = percentage(found.tolerance)
    return {
        Verdict.REPRODUCED: f"reproduced within {tolerated}: {ratio}",
        Verdict.DIFFERS: f"differs by more than {tolerated}: {ratio}",
        Verdict.UNDECIDED: f"undecided, more --repeats narrow the interval: {ratio}; tolerated: {tolerated}",
    }[found.verdict]


def _losses(relative: float) -> str:
    return "equal" if relative == 0 else f"differ by up to {number(relative, digits=2)} of the first loss"
