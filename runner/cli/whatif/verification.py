"""Verifies predictions: measures the baseline and the predicted settings, interleaved, and judges each prediction.

Promise: what is measured has exactly the settings that were predicted; what cannot be measured here is listed with the
reason. A verification is stored in the run that measured it, as `whatif.json`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from keras_matrix.analysis.stats.blocks import MIN_BLOCKS
from keras_matrix.analysis.whatif import verify
from keras_matrix.analysis.whatif.graph import Graph, GraphError
from keras_matrix.analysis.whatif.recalibration import recalibrated, with_link
from keras_matrix.analysis.whatif.replay import Replay, replay
from keras_matrix.analysis.whatif.search.trajectory import Strategy
from keras_matrix.analysis.whatif.verify import BASELINE, Measurement, Prediction, Verdict, Verification
from keras_matrix.analysis.whatif.what_ifs import registry
from keras_matrix.records.settings import Settings
from keras_matrix.runner.cli.options import add_measuring_options, check_range, run_request
from keras_matrix.runner.cli.render.display import TerminalDisplay
from keras_matrix.runner.cli.whatif.measuring import Session, measure
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.matrix.overrides import Overrides
from keras_matrix.runner.measure.request import MATRIX, CellChoice, RunRequest
from keras_matrix.runner.service.stored import write_page
from keras_matrix.runner.whatif import verification_file
from keras_matrix.runner.whatif.measurement import Plan, environment_problem, plan, settings_of, unused_links

LEAST_FITTED = 2


@dataclass(frozen=True, slots=True)
class Work:
    """How to measure: with so many processes of each setting; `recalibrate` allows a second round."""

    request: RunRequest
    display: TerminalDisplay
    repeats: int
    recalibrate: bool = False


@dataclass(frozen=True, slots=True)
class Verified:
    """A verification, None if nothing was measured, its run, and why settings are not in it, by name."""

    session: Session
    verification: Verification | None
    left_out: dict[str, str] = field(default_factory=dict)
    note: str = ""


def add_verify_options(parser: argparse.ArgumentParser, what: str) -> None:
    """Add the flags of a verification."""
    parser.add_argument("--verify", action="store_true", help=f"measure the baseline and {what}, and judge them")
    repeats = f"with --verify: processes of each setting; default: {MIN_BLOCKS}, the fewest that give an interval"
    parser.add_argument("--repeats", type=int, default=MIN_BLOCKS, metavar="N", help=repeats)
    again = "with --verify: if predictions are refuted, fit the link to two of the settings, and judge the others again"
    parser.add_argument("--recalibrate", action="store_true", help=again)
    add_measuring_options(parser)


def work_of(args: argparse.Namespace) -> Work:
    """Return how to measure by the flags of `add_verify_options`. Raises `UsageError`."""
    check_range("--repeats", args.repeats, 1, 1000)
    request = run_request(args, CellChoice(MATRIX, Overrides(), args.service))
    return Work(request, TerminalDisplay(args.json), args.repeats, args.recalibrate)


def base_settings(graph: Graph, flag: str) -> Settings:
    """Return the settings of the traced cell. Raises `UsageError` for a trace of another program."""
    found = settings_of(graph.header.settings)
    if found is None:
        raise UsageError(
            f"{flag}: {graph.header.source} is not the trace of a cell, so that its settings are not known; record one "
            "with: runner trace CELL"
        )
    return found


def check_base(graph: Graph) -> None:
    """Raise `UsageError` if the traced cell itself cannot be measured here."""
    if problem := environment_problem(base_settings(graph, "--verify")):
        raise UsageError(f"--verify: {problem}")


def checked_plan(work: Work, graph: Graph, strategies: Sequence[Strategy]) -> Plan:
    """Return the cells that verify these strategies. Raises `UsageError` if none of them can be measured here."""
    base = base_settings(graph, "--verify")
    changes = {name_of(one): one.settings for one in strategies if one.settings is not None}
    found = plan(base, changes, work.repeats)
    reasons = {name_of(one): one.reason or "no setting realises it" for one in strategies if one.settings is None}
    found = replace(found, left_out={**reasons, **found.left_out})
    if strategies and len(found.cells) == 1:
        listed = "; ".join(f"{name}: {reason}" for name, reason in found.left_out.items())
        raise UsageError(f"--verify: no predicted setting can be measured here: {listed}")
    work.display.problems(filter(None, [unused_links(base)]))
    return found


def verified(work: Work, graph: Graph, baseline: Replay, strategies: Sequence[Strategy], found: Plan) -> Verified:
    """Measure the cells of a plan, judge the predictions, and store the verification with the run."""
    session = measure(work.request, work.display, found.cells, "runner " + work.request.command[1])
    measurements = {name: Measurement(one.step_times_s, one.losses) for name, one in session.found.items()}
    failed = {name: "; ".join(one.failures) for name, one in session.found.items() if not one.step_times_s}
    result = Verified(session, None, {**found.left_out, **failed})
    if BASELINE not in failed:
        shown = [one for one in strategies if name_of(one) in found.cells]
        first = verify.judge(_predictions(baseline, shown), measurements)
        result = replace(result, verification=first)
        if work.recalibrate and first.verdict is not Verdict.VERIFIED:
            result = _again(result, graph, shown, measurements)
    session.run.store_object(verification_file.FILE, document_of(graph, result))
    findings = session.findings
    context = replace(findings.run_context, verification=result.verification)
    write_page(session.run, replace(findings, run_context=context), session.run.folder / "report.html")
    return result


def name_of(strategy: Strategy) -> str:
    """Return the name of a strategy: its what-ifs."""
    return " ".join(strategy.what_ifs)


def document_of(graph: Graph, result: Verified) -> dict[str, object]:
    """Return the content of `whatif.json`."""
    return verification_file.document(
        result.session.run, graph.header.source, result.verification, result.left_out, result.note
    )


def _predictions(baseline: Replay, strategies: Sequence[Strategy]) -> dict[str, Prediction]:
    found = {BASELINE: Prediction(baseline.step_time_s, baseline.low_s, baseline.high_s)}
    for one in strategies:
        found[name_of(one)] = Prediction(one.step_time_s, one.low_s, one.high_s, one.changes_numerics)
    return found


def _again(
    first: Verified, graph: Graph, strategies: Sequence[Strategy], measurements: dict[str, Measurement]
) -> Verified:
    """Fit the link to the baseline and the setting that was predicted to be slowest, and judge the others again."""
    known = [one for one in strategies if measurements[name_of(one)].step_times_s]
    if first.verification is None or len(known) < LEAST_FITTED:
        return replace(first, note="not recalibrated: needs two measured settings besides the baseline")
    fitted = max(known, key=lambda one: one.step_time_s)
    names = (BASELINE, name_of(fitted))
    times = [verify.geometric_of(measurements[name]) for name in names]
    cases = [(texts, time.centre) for texts, time in zip(((), fitted.what_ifs), times, strict=True) if time]
    try:
        link = recalibrated(graph, cases)
        changed = with_link(graph, link)
        again = [_repredicted(changed, one) for one in known]
        second = verify.judge_again(
            first.verification, _predictions(replay(changed), again), measurements, link.source, names
        )
    except (GraphError, ValueError) as error:
        return replace(first, note=f"not recalibrated: {error}")
    return replace(first, verification=second)


def _repredicted(graph: Graph, strategy: Strategy) -> Strategy:
    found = replay(registry.apply(graph, [registry.read(text) for text in strategy.what_ifs]))
    return replace(strategy, step_time_s=found.step_time_s, low_s=found.low_s, high_s=found.high_s)
