"""From a run's table and its histories to findings: estimates, intervals and verdicts as plain rows.

Dashboards and the warehouse show these and compute no others. Guarantee: pure; every finding names its method and that
method's version, which grows when the same records would give another figure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from keras_matrix.analysis.comparison import primary_metric
from keras_matrix.analysis.comparison.ratios import BackendRatio
from keras_matrix.analysis.comparison.starts import WarmCache
from keras_matrix.analysis.comparison.table import CellSummary, Row, work_id
from keras_matrix.analysis.cost import COST_METHOD, COST_METRIC
from keras_matrix.analysis.fc import FcFigure
from keras_matrix.analysis.history.change_points import Assessment, Change, ChangeKind, VersionChange, kind_of
from keras_matrix.analysis.history.sessions import CellSession
from keras_matrix.analysis.keras_cost import KerasCost
from keras_matrix.analysis.roofline import PeakShare
from keras_matrix.analysis.scaling import DeviceScaling
from keras_matrix.analysis.stats.blocks import Estimate
from keras_matrix.analysis.stats.cell_statistics import STATISTICS, STEP_TIME_NAME
from keras_matrix.analysis.stats.suite import Suite
from keras_matrix.analysis.views.call_ladder import CallLadder, CallRung, by_default
from keras_matrix.analysis.views.result_table import CellView, ResultTable, WorkView
from keras_matrix.records.backends import TABLE
from keras_matrix.records.fc import rules
from keras_matrix.records.findings import Finding, FindingKind
from keras_matrix.records.schema import MEASURED
from keras_matrix.records.task import METRICS as TASK_METRICS
from keras_matrix.records.task import PREFIX, Goal

STEP_TIME = STEP_TIME_NAME
VERSIONS = {
    **{statistic.method: statistic.version for statistic in STATISTICS},
    "geometric mean over processes": 1,
    "geometric mean over processes, machine as level": 1,
    "log ratio paired by block": 1,
    "log ratio paired by block, machine as level": 1,
    "Benjamini-Hochberg over the table": 1,
    "geometric mean over works": 2,
    "model FLOPs over the best product": 1,
    "weights read over the best triad": 1,
    "throughput over one worker's": 1,
    "log ratio to one device, paired by block": 1,
    "log ratio of first epochs, paired by repeat": 1,
    "log ratio to native code, paired by block": 1,
    "differences of implementations over blocks": 1,
    "log ratio to another call, paired by block": 1,
    "geometric mean over processes, the wider of two intervals": 1,
    "largest deviation over processes": 1,
    "collectives watched apart": 1,
    "geometric mean over sessions": 1,
    "least squares segmentation": 2,
    "differential over arms": 1,
    "wait over step time": 1,
    COST_METHOD: 1,
}
# Fields of `PeakShare`, with their units.
RATES = dict.fromkeys(("achieved_flop_per_s", "peak_flop_per_s", "roof_flop_per_s"), "FLOP/s")
PEAKS = RATES | {"mfu": "1", "intensity_flop_per_byte": "FLOP/B"}
HOST_FACTS = frozenset({"kernel", "os", "cpu_model", "logical_cpus", "memory_bytes", "container", "machine_type"})
MACHINE_FACTS = HOST_FACTS | {"gpu_driver", "gpus", "cpus", "affinity"}


def run_findings(table: ResultTable, assessed: Iterable[Assessment] = (), run_id: str = "") -> list[Finding]:
    """Return all findings of a run: from its table with its context, and from its histories up to this run."""
    findings = [
        *(finding for work in table.works for finding in _work(work)),
        *_suites(table.suites),
        *_inputs(table),
        *(finding for history in assessed for finding in _history(history, run_id)),
    ]
    return sorted(
        findings,
        key=lambda finding: (finding.kind, finding.metric, finding.work, finding.backend or "", finding.finding_id),
    )


def likely_owner(versions: Sequence[VersionChange]) -> str:
    """Return who probably knows about a change, by the facts that changed nearest to it."""
    if not versions:
        return "unknown: no recorded version or setting changed there; bisect"
    nearest = min(abs(change.sessions_off) for change in versions)
    nearest_changes = [change for change in versions if abs(change.sessions_off) == nearest]
    groups = dict.fromkeys(_group(change.name) for change in nearest_changes)
    words = ", ".join(
        f"{change.name} {change.before or 'absent'} → {change.after or 'absent'}" for change in nearest_changes
    )
    return f"{' or '.join(groups)}: {words}"


def _group(name: str) -> str:
    if name == "keras":
        return "Keras"
    if name in MACHINE_FACTS:
        return "the machine's administrator"
    packages = {package: backend.name for backend in TABLE.values() for package in backend.packages}
    found = (backend for package, backend in packages.items() if name.startswith(package))
    return next(found, "the author of the settings or packages")


def _work(work: WorkView) -> Iterator[Finding]:
    for view in work.cells:
        base = _of_cell(work.row, view.cell)
        yield from _figures(base, view)
        yield from _peak(base, view.share)
        yield from _workers(base, work.row, view.parallel) if view.parallel else ()
        yield from _devices(base, view.scaling) if view.scaling else ()
        yield from _warm_cache(base, view.warm_cache) if view.warm_cache else ()
        yield from _keras_cost(base, view.keras_cost) if view.keras_cost else ()
        yield from _call(base, view.cell, *view.call) if view.call else ()
    yield _verdict(work)
    yield from (_ratio(work.row, ratio) for ratio in work.row.ratios)


def _of_cell(row: Row, cell: CellSummary) -> Finding:
    """Return an empty finding with the identity of the cell."""
    names: dict[str, Any] = {n: getattr(cell.settings, n) for n in ("workload", "backend", "device", "league")}
    return Finding(
        FindingKind.FIGURE, "", row.title, "", 0, work_id=work_id(cell.settings), cell_id=cell.cell_id, **names
    )


def _made(base: Finding, kind: FindingKind, metric: str, method: str, **changes: Any) -> Finding:
    return replace(base, kind=kind, metric=metric, method=method, method_version=VERSIONS[method], **changes)


def _metric(cell: CellSummary) -> str:
    """Return the name of the figure that a cell is compared by: for an external command its primary metric."""
    return STEP_TIME if cell.figure is primary_metric.STEP_TIME else f"{TASK_METRICS}.{cell.figure.name}"


def _figures(base: Finding, view: CellView) -> Iterator[Finding]:
    cell, count = view.cell, view.processes
    statuses = sorted({record.status.value for record in cell.records if record.status not in MEASURED})
    yield _made(
        base,
        FindingKind.FIGURE,
        _metric(cell),
        f"geometric mean over processes{_level(len(cell.machines))}",
        **_interval(cell.step_time),
        unit=cell.figure.unit or "1",
        smallest_difference=cell.smallest_difference,
        verdict=", ".join(statuses) if statuses else "ok",
        said="; ".join(f"{status}: {reason}" for status, reason in cell.failures) or None,
        facts=_facts(cell),
    )
    for statistic in STATISTICS:
        if (value := view.statistics.get(statistic.metric)) is not None:
            estimate_fields = {"estimate": value, "count": count, **_interval(statistic.interval(cell))}
            yield _made(
                base, FindingKind.FIGURE, statistic.metric, statistic.method, unit=statistic.unit, **estimate_fields
            )
    if view.cost and view.cost.estimate:
        cost_fields = {"unit": view.cost.currency, **_interval(view.cost.estimate)}
        yield _made(base, FindingKind.FIGURE, COST_METRIC, COST_METHOD, said=view.cost.basis, **cost_fields)


def _facts(cell: CellSummary) -> dict[str, str]:
    record = next(iter(cell.measured or cell.records))
    steps = {"steps_per_epoch": str(record.resolved.steps_per_epoch)} if record.resolved else {}
    params = {f"param.{k}": str(v) for k, v in cell.settings.params.items()}
    return {**record.versions, **steps, **params, **_over(len(cell.machines))}


def _level(machine_count: int) -> str:
    return ", machine as level" if machine_count > 1 else ""


def _over(machine_count: int) -> dict[str, str]:
    return {"machines": str(machine_count)} if machine_count > 1 else {}


def _interval(estimate: Estimate | None) -> dict[str, Any]:
    if estimate is None:
        return {}
    return {"estimate": estimate.centre, "low": estimate.low, "high": estimate.high, "count": estimate.count}


def _peak(base: Finding, share: PeakShare | None) -> Iterator[Finding]:
    if share is not None and share.share_of_bandwidth is not None:
        method = "weights read over the best triad"
        yield _made(
            base, FindingKind.PEAK, "generation.own_share_of_bandwidth", method, estimate=share.share_of_bandwidth
        )
    if share is None or share.achieved_flop_per_s is None:
        return
    method = "model FLOPs over the best product"
    bounds = {"estimate": share.share_of_peak, "low": share.low, "high": share.high}
    yield _made(base, FindingKind.PEAK, "share_of_peak", method, **bounds, said=share.note)
    for metric, unit in PEAKS.items():
        if (value := getattr(share, metric)) is not None:
            yield _made(base, FindingKind.PEAK, metric, method, estimate=value, unit=unit)


def _verdict(work: WorkView) -> Finding:
    row = work.row
    first_cell = next(iter(row.cells.values()))
    base = replace(_of_cell(row, first_cell), cell_id=None, backend=row.fastest)
    word = "fastest" if row.fastest else "not comparable" if row.verdict.startswith("not comparable") else "open"
    caveats = {"caveats": "; ".join(row.caveats)} if row.caveats else {}
    return _made(
        base,
        FindingKind.VERDICT,
        _metric(first_cell),
        "Benjamini-Hochberg over the table",
        p_value=row.adjusted_p,
        verdict=word if len(row.cells) > 1 else "nothing to compare",
        said=row.verdict,
        facts={"same work": work.same_work.text, **caveats, **_over(len(row.machines))},
    )


def _ratio(row: Row, ratio: BackendRatio) -> Finding:
    is_slower, machine_count = (ratio.estimate.low or 0.0) > 1, len(ratio.by_machine)
    facts = {
        f"ratio at {machine_ratio.machine}": f"{machine_ratio.estimate.centre:.4g}"
        for machine_ratio in ratio.by_machine
    }
    if ratio.disagreement is not None:
        facts["p of equal machines"] = f"{ratio.disagreement:.2g}"
    return _made(
        _of_cell(row, row.cells[ratio.backend]),
        FindingKind.RATIO,
        _metric(row.cells[ratio.backend]),
        f"log ratio paired by block{_level(machine_count)}",
        **_interval(ratio.estimate),
        against=row.lowest,
        p_value=ratio.p_value,
        smallest_difference=ratio.smallest_difference,
        verdict="slower" if is_slower and (row.fastest or ratio.backend in row.slower) else "open",
        facts={**facts, **_over(machine_count)},
    )


def _suites(suites: Sequence[Suite]) -> Iterator[Finding]:
    method = "geometric mean over works"
    for suite in suites:
        for backend, ratio in suite.ratios.items():
            base = Finding(FindingKind.SUITE, STEP_TIME, "all works", method, VERSIONS[method], backend=backend)
            facts = {"left out": suite.left_out} if suite.left_out else {}
            yield replace(base, league=suite.league, against=suite.against, facts=facts, **_interval(ratio.estimate))


def _workers(cell: Finding, row: Row, figure: FcFigure) -> Iterator[Finding]:
    facts = {"mode": figure.task.mode, "workers": str(figure.task.workers), "kind": str(figure.task.kind)}
    facts["divided work"] = str(row.labels.without("workers")) if row.labels else row.title
    facts["divided work id"] = work_id(rules.one_worker(figure.settings))
    base, worker_method = replace(cell, facts=facts), "throughput over one worker's"
    yield _made(
        base, FindingKind.WORKERS, "samples_per_s", worker_method, estimate=figure.samples_per_s, unit="samples/s"
    )
    if figure.efficiency is not None:
        yield _made(base, FindingKind.WORKERS, "efficiency", worker_method, **_interval(figure.efficiency))
    if figure.communication_share is not None:
        watched_method = "collectives watched apart"
        yield _made(
            base, FindingKind.WORKERS, "communication_share", watched_method, estimate=figure.communication_share
        )


def _devices(cell: Finding, scaling: DeviceScaling) -> Iterator[Finding]:
    """Return what a cell on several devices gains, and without a known gain why."""
    facts = {
        "devices": str(scaling.devices),
        "distribution": scaling.settings.distribution,
        "divided work": scaling.work,
        "divided work id": scaling.work_id,
        "method": scaling.replicas.method,
        "fit": "yes" if scaling.replicas.is_fit else "no",
        "gradient bytes": str(scaling.replicas.gradient_bytes),
        **{f"meaning {number}": sentence for number, sentence in enumerate(scaling.replicas.semantics, 1)},
    }
    base, ratio_method = replace(cell, facts=facts), "log ratio to one device, paired by block"
    verdict_facts = {"verdict": scaling.verdict, "said": scaling.text}
    yield _made(base, FindingKind.DEVICES, "speed_up", ratio_method, **_interval(scaling.speed_up), **verdict_facts)
    if scaling.efficiency is not None:
        yield _made(base, FindingKind.DEVICES, "efficiency", ratio_method, **_interval(scaling.efficiency))
    if scaling.spent is not None:
        watched_method = "collectives watched apart"
        with_method = replace(base, facts={**facts, "communication method": str(scaling.spent.method)})
        yield _made(
            with_method, FindingKind.DEVICES, "communication_share", watched_method, estimate=scaling.spent.share
        )


def _warm_cache(cell: Finding, cache: WarmCache) -> Iterator[Finding]:
    """Return how much longer the first epoch of a cell with a warm compile cache is with a cold one."""
    method = "log ratio of first epochs, paired by repeat"
    yield _made(
        cell, FindingKind.FIGURE, "cold_over_warm_first_epoch", method, **_interval(cache.estimate), said=cache.text
    )


def _keras_cost(cell: Finding, cost: KerasCost) -> Iterator[Finding]:
    """Return what Keras costs over native code in a cell of Keras, and the share of each of its parts."""
    method = "log ratio to native code, paired by block"
    yield _made(cell, FindingKind.FIGURE, "keras_over_native", method, **_interval(cost.estimate), said=cost.text)
    for part in cost.parts:
        metric, difference_method = (
            f"keras_cost.{part.name.replace(' ', '_')}",
            "differences of implementations over blocks",
        )
        yield _made(cell, FindingKind.FIGURE, metric, difference_method, **_interval(part.share))


def _call(base: Finding, cell: CellSummary, ladder: CallLadder, rung: CallRung) -> Iterator[Finding]:
    """Return what the call of a cell costs, over another call of the same work too, and how its outputs compare.

    The facts have the row of the rung, so that every page shows the same texts.
    """
    ladder_facts = {"ladder": ladder.work, "ladder id": work_id(by_default(cell.settings))}
    base = replace(base, facts={**ladder_facts, **rung.facts}, against=ladder.reference)
    mean_method = f"geometric mean over processes{_level(len(cell.machines))}"
    times = {
        "call_time_s": (mean_method, cell.step_time),
        "call_time_p50_s": ("geometric mean over processes, the wider of two intervals", rung.p50),
        "call_time_p99_s": ("geometric mean over processes, the wider of two intervals", rung.p99),
    }
    for metric, (method, estimate) in times.items():
        if estimate is not None:
            yield _made(base, FindingKind.CALL, metric, method, **_interval(estimate), unit="s")
    outputs_method, ratio_method = "largest deviation over processes", "log ratio to another call, paired by block"
    yield _made(base, FindingKind.CALL, "outputs_deviation", outputs_method, estimate=rung.deviation, said=rung.outputs)
    if rung.call != ladder.reference:
        ratio_fields = {**_interval(rung.estimate), "said": ladder.sentence(rung)}
        yield _made(base, FindingKind.CALL, "call_over_reference", ratio_method, **ratio_fields)


def _inputs(table: ResultTable) -> Iterator[Finding]:
    """Return the share of each part of a step, of input in all, and the bottleneck, for the observed cell."""
    cells = {view.cell.cell_id: (work.row, view.cell) for work in table.works for view in work.cells}
    for report in table.run_context.stalls:
        observed_id = report.observed_arm.cell_id
        if observed_id not in cells or report.bottleneck is None:
            continue
        base = replace(_of_cell(*cells[observed_id]), facts={"analysis": report.cell_id})
        differential_method, shares = "differential over arms", {part.name: part.share for part in report.parts}
        for name, share in {"stall": report.stall, **shares}.items():
            if share is not None:
                metric = f"input.{name.replace(' ', '_')}_share"
                yield _made(base, FindingKind.INPUT, metric, differential_method, **_interval(share))
        if report.input_bound is not None:
            waited = _interval(report.input_bound)
            yield _made(base, FindingKind.INPUT, "input.input_bound_share", "wait over step time", **waited)
        verdict_fields = {"verdict": str(report.bottleneck), "said": report.why, **_interval(report.ceiling)}
        yield _made(base, FindingKind.INPUT, "input.ceiling_speed_up", differential_method, **verdict_fields)


def _history(assessment: Assessment, run_id: str) -> Iterator[Finding]:
    """Return this run's session of a history, the level since the last change, and every change."""
    history = assessment.history
    names: dict[str, Any] = {n: str(history.settings.get(n, "")) for n in ("workload", "backend", "league")}
    session = next((s for s in history.sessions if s.run_id == run_id), None)
    if session is None or names["workload"].startswith(PREFIX):
        return
    base = Finding(
        FindingKind.SESSION, STEP_TIME, names["workload"], "", 0, cell_id=history.cell_id, host_id=history.host_id
    )
    base = replace(base, device=" ".join(history.device) if history.device else None, **names)
    yield _session(base, session)
    if assessment.levels:
        level = assessment.levels[-1]
        spread = {"between_sessions": f"{assessment.spread.between_log:.4g}"} if assessment.spread else {}
        first_run_id = history.valued[level.first].run_id
        level_values = {
            **_interval(level.step_time),
            "count": level.last - level.first + 1,
            "facts": spread,
            "unit": "s",
        }
        yield _made(
            base, FindingKind.LEVEL, STEP_TIME, "geometric mean over sessions", **level_values, at_run_id=first_run_id
        )
    for change in assessment.changes:
        yield _change(base, change, len(history.valued) - change.index)


def _session(base: Finding, session: CellSession) -> Finding:
    left_out = {f"left out: {status}": str(count) for status, count in session.left_out.items()}
    verdict = "ok" if session.step_time else "no process ended ok"
    session_values = {
        **_interval(session.step_time),
        "verdict": verdict,
        "facts": {**session.facts, **left_out},
        "unit": "s",
    }
    return _made(base, FindingKind.SESSION, STEP_TIME, "geometric mean over processes", **session_values)


def _change(base: Finding, change: Change, sessions: int) -> Finding:
    kind = kind_of(change, Goal.LOWER)
    look = None if kind is ChangeKind.INTENDED else likely_owner(change.versions)
    return _made(
        base,
        FindingKind.CHANGE,
        STEP_TIME,
        "least squares segmentation",
        estimate=change.ratio,
        count=sessions,
        at_run_id=change.run_id,
        verdict=str(kind),
        said=_said(kind, change),
        look=look,
        facts={
            version.name: f"{version.before or 'absent'} → {version.after or 'absent'}" for version in change.versions
        },
    )


def _said(kind: ChangeKind, change: Change) -> str | None:
    if kind is ChangeKind.REPAIRED:
        return f"no longer worse since {change.repaired}"
    return change.note if kind is ChangeKind.INTENDED else change.acknowledged
