"""Measure how long a cell waits for its input, where, and what would fix it.

The cell is measured with synthetic batches, with batches from host memory, with its input pipeline on a warm and on a
cold page cache, and with timers, all interleaved. CELL is a cell of the matrix or of a stored run; a workload means its
cells on every backend, one analysis each. --verify applies the best advice and measures it; --run RUN --verify does so
for a stored analysis, whose arms are not measured again. docs/stalls.md"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from keras_matrix.analysis.comparison.ratios import bracketed, share_text
from keras_matrix.analysis.stalls.report import Advice, StallPart, StallReport, VerifiedAdvice
from keras_matrix.records.codec import to_json
from keras_matrix.records.instruments.input_use import InputFacts
from keras_matrix.records.store import Run
from keras_matrix.records.text import (
    NOTHING,
    number,
    percentage,
    percentage_interval,
    plural,
    printable,
    seconds,
)
from keras_matrix.runner.cli.options import add_matrix_options, add_measuring_options, run_request
from keras_matrix.runner.cli.render.format import columns, document
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.matrix.settings_text import settings_text
from keras_matrix.runner.measure.input_tools import ChildProcesses
from keras_matrix.runner.measure.request import check_range
from keras_matrix.runner.progress.lines import TerminalDisplay
from keras_matrix.runner.service import cells
from keras_matrix.runner.service.stalls import (
    Analysis,
    StallWork,
    analysed,
    data_folders,
)

APPLIED = 2


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    parser.add_argument("cell", metavar="CELL", help=cells.HELP)
    parser.add_argument(
        "--run",
        metavar="RUN",
        help="show the analyses of this stored run; only --verify measures, and probes what was not",
    )
    cold_help = "also measure with the data set's files evicted from the page cache before each epoch; default: yes"
    parser.add_argument("--cold", action=argparse.BooleanOptionalAction, help=cold_help)
    parser.add_argument("--verify", action="store_true", help="apply the best advice and measure it")
    top_help = f"with --verify: how many changes to apply, one at a time; default: {APPLIED}"
    parser.add_argument("--top", type=int, metavar="N", help=top_help)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    add_matrix_options(parser)
    add_measuring_options(parser)


def run(args: argparse.Namespace) -> int:
    """Measure the arms and print the analyses, or show those of a stored run. Returns the exit code."""
    _check_flags(args.top, args.run, verify=args.verify, cold=args.cold)
    request = run_request(args)
    tools = request.seams.input_tools or ChildProcesses()
    work = StallWork(request, TerminalDisplay(args.json), tools, data_folders(request))
    most = (APPLIED if args.top is None else args.top) if args.verify else None
    analysed_run, reports, code = analysed(work, Analysis(args.cell, args.run, args.cold is not False, most))
    return max(code, _show(analysed_run, reports, as_json=args.json))


def _check_flags(top: int | None, run: str | None, *, verify: bool, cold: bool | None) -> None:
    """Refuse flags that would have no effect. Raises `UsageError`."""
    if top is not None:
        check_range("--top", top, 1)
        if not verify:
            raise UsageError("--top: needs --verify, which applies so many changes; without it all advice is shown")
    if run is not None and cold is not None:
        name = "--cold" if cold else "--no-cold"
        raise UsageError(f"{name}: must not be given with --run, whose arms have been measured: leave it out")


def _show(run: Run, reports: Sequence[StallReport], *, as_json: bool) -> int:
    """Print the analyses; return 1 if one has no result."""
    has_failed = not reports or any(report.reason is not None for report in reports)
    if as_json:
        print(document({"run": run.run_id, "reports": to_json(list(reports))}))
        return int(has_failed)
    for report in reports:
        print("\n".join(["", *map(printable, report_lines(report))]))
    if not reports:
        print("no analysis: no arm with an input pipeline was measured")
    print(f"\nreport: {run.folder / 'report.html'}   analysis: {run.folder / 'stalls.json'}")
    return int(has_failed)


def report_lines(report: StallReport) -> list[str]:
    """Return the page of an analysis."""
    title = f"{report.settings.backend} {settings_text(report.settings)}"
    if report.reason is not None:
        return [f"{title}: no analysis: {report.reason}"]
    return [
        f"{title}: {plural(report.blocks, 'block')}, with a {report.page_cache}",
        *(f"caveat: {text}" for text in report.all_caveats),
        "",
        *_split_lines(report),
        "",
        *_bottleneck_lines(report),
        "",
        *_advice_lines(report),
        *_verified_lines(report.verified),
    ]


def _split_lines(report: StallReport) -> list[str]:
    step_time = report.observed_arm.step_time
    step = step_time.centre if step_time else None
    rows = [["where an epoch goes", "a step", "share", "95 % interval"], *map(_part_row, report.parts)]
    rows.append(["step", seconds(step), percentage(1.0), ""])
    lines = columns(rows, frozenset((1, 2)))
    if report.stall is not None:
        lines += ["", f"input stall {share_text(report.stall)}: 1 - synthetic / {report.observed}, without instruments"]
    if report.input_bound is not None:
        lines.append(
            f"input-bound {share_text(report.input_bound)}: time waiting for input / step time, measured in-band"
        )
    return lines


def _part_row(part: StallPart) -> list[str]:
    interval = percentage_interval(*part.share.bounds) if part.share and part.share.bounds else ""
    return [part.name, part.time_text, part.share_text, interval]


def _bottleneck_lines(report: StallReport) -> list[str]:
    return [f"bottleneck: {report.bottleneck}. {report.explanation}", *(f"  {text}" for text in _rate_texts(report))]


def _rate_texts(report: StallReport) -> Iterator[str]:
    rates, facts = report.rates, report.facts
    if facts is not None:
        fact_texts = [facts.pipeline, facts.stored_as, _workers(facts), facts.decoder]
        prefetch = None if facts.prefetch is None else f"prefetch {facts.prefetch}"
        yield f"pipeline: {', '.join(text for text in (*fact_texts, prefetch) if text)}"
    if rates.fetch_wall_s is not None and rates.prepare_wall_s is not None:
        fetch_text = f"fetch {seconds(rates.fetch_wall_s)} (CPU {seconds(rates.fetch_cpu_s)})"
        yield f"per sample: {fetch_text}, prepare {seconds(rates.prepare_wall_s)} (CPU {seconds(rates.prepare_cpu_s)})"
    if rates.prepared_per_cpu_s is not None:
        used_text = "" if rates.concurrency is None else f"; {rates.concurrency:.2f} of {rates.cores} CPUs"
        yield f"decode rate: {number(rates.prepared_per_cpu_s)} samples per CPU-second{used_text}"
    if rates.storage_text:
        hits_text = (
            "" if rates.cache_hit_share is None else f", {percentage(rates.cache_hit_share)} from the page cache"
        )
        yield f"storage: {rates.storage_text}{hits_text}"
    if report.mean_queue is not None:
        most_text = "" if report.queue_capacity is None else f" of at most {report.queue_capacity}"
        yield f"queue: {number(report.mean_queue)} batches ready on average{most_text}"
    if rates.timers_cpu_share is not None:
        yield f"own cost of the timers: {percentage(rates.timers_cpu_share)} of the timed arm; the other arms have none"


def _workers(facts: InputFacts) -> str:
    if facts.workers is None:
        return "unknown workers"
    if facts.workers == 0:
        return "no workers"
    kind = facts.worker_kind or "worker"
    return plural(facts.workers, kind, "processes" if kind == "process" else None)


def _advice_lines(report: StallReport) -> list[str]:
    ceiling = report.ceiling
    top_line = f"ceiling: {bracketed(ceiling)}, with every batch on the device" if ceiling is not None else ""
    if not report.advice:
        return [f"{report.without_advice}. {top_line[:1].upper()}{top_line[1:]}".rstrip()]
    rows = [["advice", "predicted speed-up", "step"], *map(_advice_row, report.advice)]
    notes = [f"  {advice.change}: {advice.note}" for advice in report.advice if advice.note]
    return [*columns(rows, frozenset((1, 2))), *notes, top_line]


def _advice_row(advice: Advice) -> list[str]:
    return [f"{advice.change}: {advice.text}", bracketed(advice.speed_up), seconds(advice.step_time_s)]


def _verified_lines(verified: Sequence[VerifiedAdvice]) -> list[str]:
    if not verified:
        return []
    rows = [["applied and measured", "predicted", "measured", "verdict"]]
    for verified_advice in verified:
        measured_text = NOTHING if verified_advice.measured is None else bracketed(verified_advice.measured)
        rows.append(
            [
                f"{verified_advice.change}: {verified_advice.text}",
                bracketed(verified_advice.predicted),
                measured_text,
                str(verified_advice.verdict),
            ]
        )
    reasons = [
        f"  {verified_advice.change}: {verified_advice.reason}"
        for verified_advice in verified
        if verified_advice.reason
    ]
    return ["", *columns(rows, frozenset((1, 2))), *reasons]
