"""The context of each speed: whether the backends did the same work, how much of the machine the cell used, caveats.

Parity is compared separately (`runner parity`), at a workload's small parameters and with the versions of that time;
the figure shown is the worst pair's among the backends of a row. The FC modes are compared with NumPy instead
(`runner fc --prove`). Guarantee: pure; only checked facts are claimed. A row with an unchecked backend is "same work
not checked", and a check with other versions is "stale".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from keras_matrix.analysis.comparison.same_work import NO_JIT, OTHER_KERAS
from keras_matrix.analysis.comparison.table import CellSummary, Row
from keras_matrix.analysis.generation import LABEL as OVERHEAD_BOUND
from keras_matrix.analysis.influence import influence_caveat
from keras_matrix.analysis.parity import ON_A_CPU
from keras_matrix.analysis.proofs import proof_lines, proofs_of
from keras_matrix.records.codec import canonical
from keras_matrix.records.fc.proof import ProvedMode
from keras_matrix.records.fc.spec import is_native, problem_of
from keras_matrix.records.instruments.influence import Influence
from keras_matrix.records.instruments.parity import Pair, ParityRecord
from keras_matrix.records.instruments.usage import UsageSeries
from keras_matrix.records.parts import is_part
from keras_matrix.records.replicas import ReplicaProof
from keras_matrix.records.settings import Scalar, Settings
from keras_matrix.records.task import PREFIX
from keras_matrix.records.traces.table import TraceSummary

if TYPE_CHECKING:
    from keras_matrix.analysis.comparison.merge import MergeSummary
    from keras_matrix.analysis.cost import Prices
    from keras_matrix.analysis.roofline import PeakShare
    from keras_matrix.analysis.stalls.report import StallReport
    from keras_matrix.analysis.whatif.verify import Verification

# By phase: the figure that covers most of the computation of a step or a call.
SHOWN = {"fit": ("float64", "gradient"), "predict": ("float64", "loss"), "generate": ("float64", "loss")}
SHOWN |= {"gradient": ("float64", "gradient")}
# With a backend that does not train: its only figure, in the one precision that it computes in.
SHOWN_OUTPUTS = ("float32", "outputs")


class WorkStatus(StrEnum):
    """The result of a parity comparison for a speed."""

    AGREES = "same work"
    EXPLAINED = "explained"
    DEVIATES = "deviates"
    STALE = "stale"
    NOT_CHECKED = "same work not checked"


STATUS_TEXTS = {
    WorkStatus.EXPLAINED: "same work, with an explained deviation",
    WorkStatus.STALE: "same work at other versions",
}
SAME_WORK = (WorkStatus.AGREES, WorkStatus.EXPLAINED)
AGAINST_NUMPY = "float64, against NumPy"
ON_ONE_DEVICE = ", on one device"
ON_A_SMALL_NETWORK = "proved on a small network: docs/fc.md"
NAMED_CAVEATS = ("TF32", OTHER_KERAS, NO_JIT, "not fit", OVERHEAD_BOUND)
PRECISIONS = ("float64", "float32")


@dataclass(frozen=True, slots=True)
class SameWork:
    """Whether backends did the same work: the worst relative deviation of `figure`, and remarks, one line each."""

    status: WorkStatus
    deviation: float | None = None
    figure: str = ""
    remarks: tuple[str, ...] = ()

    @property
    def value(self) -> str | None:
        """The deviation as text, None if it is not known."""
        if self.deviation is None:
            return None
        return f"{self.deviation:.0e}".replace("e-0", "e-") if self.deviation else "0"

    @property
    def text(self) -> str:
        """The result as text, such as `same work: 3e-9 (float64 gradient)`."""
        status = STATUS_TEXTS.get(self.status, str(self.status))
        return status if self.value is None else f"{status}: {self.value} ({self.figure})"

    @property
    def checked(self) -> bool:
        """Whether the backends were compared at these versions, and did the same work."""
        return self.status in SAME_WORK


@dataclass(frozen=True, slots=True)
class ShownTrace:
    """A cell's trace as shown on a page: its path relative to the run's folder, and its table."""

    link: str
    table: TraceSummary


@dataclass(frozen=True, slots=True)
class UnreadFile:
    """A file that cannot be used, by its path in the results folder, and why. No figure is computed from it."""

    file: str
    reason: str

    def __str__(self) -> str:
        return f"{self.file}: {self.reason}"


@dataclass(frozen=True, slots=True)
class RunContext:
    """Facts from outside a run's own records: parity comparisons, proofs of the FC modes, shares of the peak by
    cell_id, notes on the peaks.

    `replica_proofs` compare several devices with one. `traces` has the newest trace of each cell by its id,
    `usage_series` the usage of attempts over time, by their key. `merge` lists the runs of a merged table; None for the
    table of one run. `stalls` are the run's stall analyses, `verification` what it measured of predictions, `command`
    the one that measures its cells; None without a matrix.
    `influences` are those of other devices at work, on any machine. `unread` are the files that cannot be used.
    `prices` are those that a user has given for this table, if any.
    """

    parity: tuple[ParityRecord, ...] = ()
    shares: Mapping[str, PeakShare] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    traces: Mapping[str, ShownTrace] = field(default_factory=dict)
    usage_series: Mapping[tuple[str, int, int], UsageSeries] = field(default_factory=dict)
    merge: MergeSummary | None = None
    stalls: tuple[StallReport, ...] = ()
    verification: Verification | None = None
    proofs: tuple[ProvedMode, ...] = ()
    replica_proofs: tuple[ReplicaProof, ...] = ()
    command: str | None = None
    influences: tuple[Influence, ...] = ()
    unread: tuple[UnreadFile, ...] = ()
    prices: Prices | None = None

    @property
    def has_peaks(self) -> bool:
        """Whether any cell can be compared with a measured peak."""
        return any(share.peak_flop_per_s for share in self.shares.values())

    def same_work(self, row: Row, backend: str | None = None) -> SameWork:
        """Return whether a row's backends did the same work, or one of them the same as the others."""
        cells = _running(row, None)
        if cells and all(is_native(cell.settings) for cell in cells.values()):
            return same_fc_work(self.proofs, row, backend)
        agreement = same_work(self.parity, row, backend)
        return replace(agreement, remarks=(*agreement.remarks, *self.on_several_devices(row, backend)))

    def on_several_devices(self, row: Row, backend: str | None = None) -> tuple[str, ...]:
        """Return whether a row's backends, or one of them, do on several devices the work of one; a line each."""
        cells = {name: cell for name, cell in _running(row, backend).items() if backend in (None, name)}
        if not cells:
            return ()
        versions = {name: _versions(name, cell) for name, cell in cells.items()}
        return proof_lines(self.replica_proofs, next(iter(cells.values())).settings, versions)


NO_CONTEXT = RunContext()


def same_work(records: Sequence[ParityRecord], row: Row, backend: str | None = None) -> SameWork:
    """Return the parity of a row's backends, or of one of them with the others; a backend alone has none."""
    cells = _running(row, backend)
    if not cells:
        return SameWork(WorkStatus.NOT_CHECKED)
    settings = next(iter(cells.values())).settings
    if settings.workload.startswith(PREFIX):
        return SameWork(WorkStatus.NOT_CHECKED, remarks=("the work of an external command cannot be checked",))
    if len(row.cells) == 1:
        return SameWork(WorkStatus.NOT_CHECKED)
    versions = {name: installed for name, cell in cells.items() if (installed := _versions(name, cell))}
    stored_comparison = latest_comparison(records, settings.workload, settings.params, versions)
    known_pairs = (
        [pair for pair in stored_comparison.record.pairs if cells.keys() >= set(pair.backends)]
        if stored_comparison
        else []
    )
    pairs = [pair for pair in known_pairs if backend is None or backend in pair.backends]
    if stored_comparison is None or not pairs:
        remark = f"compare the backends with: runner parity {settings.workload}"
        if is_part(settings.workload):  # parity trains, with the weights of a model
            remark = "outputs are compared with those of model(x) on the same backend, not between backends"
        return SameWork(WorkStatus.NOT_CHECKED, remarks=() if settings.script else (remark,))
    is_predicted = any(observed.outputs is not None for pair in pairs for observed in pair.deviations.values())
    precision, figure = SHOWN_OUTPUTS if is_predicted else SHOWN[settings.phase]
    values = [getattr(pair.deviations[precision], figure) for pair in pairs if precision in pair.deviations]
    known_values = [value for value in values if value is not None]
    concerned = {name for pair in pairs for name in pair.backends}
    stale = [name for name in stored_comparison.stale if name in concerned]
    status, absent = _work_status(pairs, stale), sorted(set(cells) - concerned) if backend is None else []
    if absent and status in SAME_WORK:
        remark = f"{', '.join(absent)} was not compared with the others: runner parity {settings.workload}"
        return SameWork(WorkStatus.NOT_CHECKED, remarks=(remark,))
    place_text = ("" if settings.device == "cpu" else ON_A_CPU) + ("" if settings.devices == 1 else ON_ONE_DEVICE)
    remarks = (*_remarks(stored_comparison, pairs, stale), *_other_precision(settings))
    return SameWork(status, max(known_values, default=None), f"{precision} {figure}{place_text}", remarks)


def latest_comparison(
    records: Sequence[ParityRecord],
    workload: str,
    params: Mapping[str, Scalar] | None = None,
    versions: Mapping[str, Mapping[str, str]] | None = None,
) -> StoredComparison | None:
    """Return the newest comparison of a workload, if possible of these versions, and then of these parameters.

    `versions` by backend are those of the figures it is shown with; backends whose versions differ are `stale`. None if
    the workload was never compared.
    """

    def stale(record: ParityRecord) -> tuple[str, ...]:
        return tuple(
            backend
            for backend, installed in (versions or {}).items()
            if any(record.versions.get(backend, {}).get(name) != installed.get(name) for name in ("keras", backend))
        )

    def suits(record: ParityRecord) -> tuple[bool, bool, str]:
        return not stale(record), canonical(record.params) == own_params, record.started_at

    own_params = None if params is None else canonical(dict(params))
    best = max((record for record in records if record.workload == workload), key=suits, default=None)
    return None if best is None else StoredComparison(best, suits(best)[1], stale(best))


@dataclass(frozen=True, slots=True)
class StoredComparison:
    """A stored comparison; `same_params`: it is of exactly the requested parameters; `stale` are the backends whose
    version has changed since."""

    record: ParityRecord
    same_params: bool
    stale: tuple[str, ...]


def same_fc_work(proofs: Sequence[ProvedMode], row: Row, backend: str | None = None) -> SameWork:
    """Return the proof of a row of an FC mode: how far each backend is from NumPy, or one of them."""
    cells = _running(row, backend)
    if not cells:
        return SameWork(WorkStatus.NOT_CHECKED)
    settings = next(iter(cells.values())).settings
    task = problem_of(settings)
    concerned = [name for name in cells if backend in (None, name)]
    versions = {name: installed[name] for name in concerned if (installed := _versions(name, cells[name]))}
    fitting_proofs = [proof for proof in proofs_of(proofs, task, versions) if proof.backend in concerned]
    advice = f"runner fc --prove --mode {task.mode} --num-workers {task.workers}"
    if absent := sorted(set(concerned) - {proof.backend for proof in fitting_proofs}):
        return SameWork(
            WorkStatus.NOT_CHECKED,
            remarks=(f"not compared with NumPy with {task.workers} workers: {', '.join(absent)}: {advice}",),
        )
    stale = sorted(
        {proof.backend for proof in fitting_proofs if versions.get(proof.backend) not in (None, proof.version)}
    )
    failure_texts = [
        f"{proof.backend}, {proof.precision}: {proof.failure}" for proof in fitting_proofs if proof.failure
    ]
    status = WorkStatus.STALE if stale else WorkStatus.DEVIATES if failure_texts else WorkStatus.AGREES
    remarks = (*([_stale_remark(stale, advice)] if stale else []), *failure_texts, ON_A_SMALL_NETWORK)
    worst_errors = [
        proof.worst_error for proof in fitting_proofs if proof.precision == "float64" and proof.worst_error is not None
    ]
    place_text = "" if all(proof.device == settings.device for proof in fitting_proofs) else ON_A_CPU
    return SameWork(
        status, max(worst_errors, default=None), f"{AGAINST_NUMPY}{place_text}", (*remarks, *_other_precision(settings))
    )


def _other_precision(settings: Settings) -> list[str]:
    """Return the remark on a precision that is not compared."""
    return [] if settings.precision in PRECISIONS else [f"compared in {' and '.join(PRECISIONS)} only"]


def _running(row: Row, backend: str | None) -> dict[str, CellSummary]:
    """Return the measured cells of a row by backend; none if the wanted backend is not among them."""
    cells = {name: cell for name, cell in row.cells.items() if cell.step_time}
    return {} if backend is not None and backend not in cells else cells


def cell_caveats(cell: CellSummary, run_context: RunContext = NO_CONTEXT) -> tuple[str, ...]:
    """Return the caveats of one cell's figures."""
    share = run_context.shares.get(cell.cell_id)
    note = share.note if share and share.share_of_peak is not None else None
    return (*cell.caveats, *filter(None, (note, influence_caveat(cell, run_context.influences))))


def named_caveats(texts: Iterable[str]) -> dict[str, str]:
    """Return those of these caveats that a verdict is marked with, by their names."""
    return {name: text for text in texts for name in NAMED_CAVEATS if f"{name}: " in text}


def _versions(backend: str, cell: CellSummary) -> dict[str, str] | None:
    """Return the versions that decide whether a comparison is stale; None if a cell's records lack them."""
    versions = next((record.versions for record in cell.measured), {})
    return {name: versions[name] for name in ("keras", backend)} if {"keras", backend} <= set(versions) else None


def _work_status(pairs: Sequence[Pair], stale: Sequence[str]) -> WorkStatus:
    if stale:
        return WorkStatus.STALE
    if not all(pair.agrees for pair in pairs):
        return WorkStatus.DEVIATES
    return WorkStatus.EXPLAINED if any(pair.findings for pair in pairs) else WorkStatus.AGREES


def _stale_remark(stale: Sequence[str], command: str) -> str:
    return f"the versions of {', '.join(stale)} differ from those compared: compare again with: {command}"


def _remarks(comparison: StoredComparison, pairs: Sequence[Pair], stale_backends: Sequence[str]) -> tuple[str, ...]:
    lines = []
    if stale_backends:
        lines.append(_stale_remark(stale_backends, f"runner parity {comparison.record.workload}"))
    for pair in pairs:
        for finding in pair.findings:
            deviation_text = (
                "not finite" if finding.value is None else f"{finding.value:.0e}, limit {finding.limit:.0e}"
            )
            lines.append(
                f"{' and '.join(pair.backends)}, {finding.precision} {finding.figure} {deviation_text}: "
                f"{finding.explanation or pair.located or 'not explained'}"
            )
    if not comparison.same_params:
        lines.append("compared at the workload's small parameters, not these")
    return tuple(lines)
