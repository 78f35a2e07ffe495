"""Measure a stored cell again, with the versions and settings of its record, and compare it with the stored figure.

    runner reproduce results/RUN/records/0a1b2c3d4e5f6071.0.0.json
    runner reproduce jax:lstm --run RUN

reproduced (exit 0): the interval of new / stored lies within the tolerance. differs (exit 4): it lies outside of it.
undecided (exit 5): otherwise. Exit 1: nothing was measured. Exit 3: it cannot be rebuilt; the message says why.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from keras_matrix.analysis.comparison.primary_metric import Figure, figure_of, figure_value, mean_figure
from keras_matrix.analysis.comparison.ratios import bracketed
from keras_matrix.analysis.regression.reproduction import NEW, STORED, Reproduction, ReproductionVerdict
from keras_matrix.records.codec import to_json
from keras_matrix.records.schema import Record, Status
from keras_matrix.records.text import amount, number, percentage, printable
from keras_matrix.runner.cli.options import add_measuring_options, run_request, share
from keras_matrix.runner.cli.render.format import document
from keras_matrix.runner.executors import registry
from keras_matrix.runner.matrix.settings_text import settings_text
from keras_matrix.runner.measure.request import check_range
from keras_matrix.runner.progress.lines import TerminalDisplay
from keras_matrix.runner.service import cells, exit_codes
from keras_matrix.runner.service.reproduce import MOST_REPEATS, judged, measured_again
from keras_matrix.runner.service.reproduce import stored as stored_cell


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    parser.add_argument("record", metavar="RECORD", help=f"the file of a record, or {cells.HELP}")
    parser.add_argument("--run", metavar="RUN", help="which run has the cell; default: the newest")
    parser.add_argument(
        "--env", type=Path, metavar="FOLDER", help="virtual environment to measure in; default: one with its versions"
    )
    parser.add_argument("--matrix", type=Path, metavar="FILE", help="its folder contains the user's own workloads")
    parser.add_argument("--repeats", type=int, metavar="N", help="processes; default: as stored, at least 5")
    parser.add_argument(
        "--threshold", type=share, default=0.05, metavar="SHARE", help="difference that is tolerated (default: 0.05)"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("reproduced"), metavar="FOLDER", help="new results; default: reproduced"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    add_measuring_options(parser)
    parser.set_defaults(executor=None)


def run(args: argparse.Namespace) -> int:
    """Measure the cell again and compare. Returns the exit code."""
    if args.repeats is not None:
        check_range("--repeats", args.repeats, 1, MOST_REPEATS)
    reproduced_cell = stored_cell(args.record, args.results, args.run)
    args.executor = args.executor or ("docker" if reproduced_cell.image else registry.DEFAULT)
    args.start = args.start or reproduced_cell.start
    request = replace(run_request(args), results=args.out)
    finished_run = measured_again(
        reproduced_cell, reproduced_cell.cell(args.repeats), args.env, request, TerminalDisplay(args.json)
    )
    reproduction = judged(reproduced_cell, finished_run.latest, args.threshold)
    if args.json:
        fields = {
            "cell_id": reproduced_cell.records[0].cell_id,
            "stored": reproduced_cell.run.run_id,
            "new": finished_run.run.run_id,
        }
        print(document(fields | to_json(reproduction)))
    else:
        print(
            "\n".join(
                lines(reproduction, figure_of(reproduced_cell.records), reproduced_cell.records, finished_run.latest)
            )
        )
    return exit_codes.VERDICTS["reproduce"][reproduction.verdict]


def lines(
    reproduction: Reproduction, figure: Figure, stored_records: Sequence[Record], new: Sequence[Record]
) -> list[str]:
    """Return the lines: both figures, the verdict, and what has changed since."""
    first_record = stored_records[0]
    texts = [f"{settings_text(first_record.settings)} on {first_record.settings.backend}, cell {first_record.cell_id}"]
    for name, side in ((STORED, stored_records), (NEW, new)):
        texts.append(f"{name + ':':16} {_side(side, figure)}")
    texts += ["", _verdict(reproduction)]
    texts += [f"losses: {_losses(reproduction.loss)}"] if reproduction.loss is not None else []
    texts += [f"changed since: {line}" for line in reproduction.changed]
    texts += [f"caveat: {line}" for line in reproduction.caveats]
    return [printable(line) for line in texts]


def _side(records: Sequence[Record], figure: Figure) -> str:
    valued = [record for record in records if record.status is Status.OK and figure_value(record)]
    failure_texts = [f"{record.status}: {record.reason}" for record in records if record.status is not Status.OK]
    mean = amount(mean_figure(valued), figure.unit)
    text = f"{figure.name} {mean}, {len(valued)} of {len(records)} processes"
    return f"{text}; {failure_texts[0]}" if failure_texts else text


def _verdict(reproduction: Reproduction) -> str:
    if reproduction.ratio is None or reproduction.work is not None:
        return f"{reproduction.verdict}: {reproduction.work or 'a side has no process that ended ok'}"
    ratio_line = f"new / stored {bracketed(reproduction.ratio)}"
    if reproduction.ratio.bounds is None:
        return (
            f"{reproduction.verdict}: {ratio_line}, without an interval, which needs two processes on each side that "
            "ended ok"
        )
    tolerated = percentage(reproduction.tolerance)
    return {
        ReproductionVerdict.REPRODUCED: f"reproduced within {tolerated}: {ratio_line}",
        ReproductionVerdict.DIFFERS: f"differs by more than {tolerated}: {ratio_line}",
        ReproductionVerdict.UNDECIDED: (
            f"undecided, more --repeats narrow the interval: {ratio_line}; tolerated: {tolerated}"
        ),
    }[reproduction.verdict]


def _losses(relative: float) -> str:
    return "equal" if relative == 0 else f"differ by up to {number(relative, digits=2)} of the first loss"
