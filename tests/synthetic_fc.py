"""Records of the FC modes as cells write them, with synthetic step times."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace

from keras_matrix.analysis.comparison.table import CellSummary, summarise
from keras_matrix.records.fc import spec
from keras_matrix.records.fc.communication import Communication, TimingMethod
from keras_matrix.records.fc.spec import FcProblem
from keras_matrix.records.schema import Record, Resolved
from tests.conftest import make_record, make_settings


def fc_records(
    problem: FcProblem, backend: str, times_s: Sequence[float], communication: Communication | None = None
) -> list[Record]:
    """Return one record a repeat, whose steps took so many seconds."""
    params = {key: value for key, value in asdict(problem).items() if key not in ("batch_size", "precision")}
    settings = make_settings(
        workload="fc", backend=backend, params=params, batch_size=problem.batch_size, precision=problem.precision
    )
    places = [
        spec.WorkerPlacement(k, f"made-up:{k}", *spec.expected_shapes(problem, k)) for k in range(problem.workers)
    ]
    proved = spec.parallel_of(problem, places, spec.traffic_per_step(problem), [400 << 20] * problem.workers)
    return [
        make_record(
            step_time_s=seconds,
            repeat=repeat,
            settings=settings,
            resolved=Resolved(10, 10, "fork", problem.precision, cpus=2),
            parallel=replace(proved, communication=communication),
        )
        for repeat, seconds in enumerate(times_s)
    ]


def fc_cells(records: Iterable[Record]) -> list[CellSummary]:
    """Return the cells of these records."""
    by_cell: dict[str, list[Record]] = {}
    for record in records:
        by_cell.setdefault(record.cell_id, []).append(record)
    return [summarise(own) for own in by_cell.values()]


PAIR = ("fc_data", "fc_model")
RATE_FLOP_PER_S = {"tensorflow": 300e9, "jax": 240e9, "torch": 150e9}
LINK_BYTE_PER_S = 4e9
SIZES = tuple((weight_size, batch) for weight_size in (256, 512, 1024) for batch in (32, 128, 640, 2048))


def made_up_run(repeats: int = 5) -> list[Record]:
    """Return two modes on one, two and four workers of each backend, and on two workers of JAX over twelve sizes."""
    small = FcProblem(level=4, weight_size=512, batch_size=128)
    problems = [(small.changed(mode=m, workers=n), b) for m in PAIR for n in (1, 2, 4) for b in RATE_FLOP_PER_S]
    over = [(small.changed(mode=m, workers=2, weight_size=s, batch_size=b), "jax") for m in PAIR for s, b in SIZES]
    everything = dict.fromkeys([*problems, *over])
    return [record for problem, backend in everything for record in _pretended(problem, backend, repeats)]


def _pretended(problem: FcProblem, backend: str, repeats: int) -> list[Record]:
    """Return records of a machine on which bytes cost time and nothing overlaps; block by block 1 % slower."""
    compute_s = spec.flops_per_step(problem) / RATE_FLOP_PER_S[backend] / problem.workers
    sent_s = spec.traffic_per_step(problem).sent_bytes(problem.workers) / problem.workers / LINK_BYTE_PER_S
    whole = [(compute_s + sent_s) * (1 + 0.01 * block) for block in range(repeats)]
    method = TimingMethod.TIMED if backend == "torch" else TimingMethod.PROFILED
    watched = Communication(method, [compute_s + sent_s] * 5, [compute_s] * 5) if problem.workers > 1 else None
    return fc_records(problem, backend, whole, watched)
