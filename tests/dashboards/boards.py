"""A results folder that answers all questions: nights on three backends, a slowdown, failures, FC modes, commands."""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path

from keras_matrix.records.backends import TRAINING_BACKENDS
from keras_matrix.records.codec import to_json
from keras_matrix.records.fc.spec import FcProblem
from keras_matrix.records.identity import cell_id
from keras_matrix.records.instruments import peaks
from keras_matrix.records.schema import Evidence, Memory, Record, Resolved, Status, Times
from keras_matrix.records.settings import COMPILED, DIRECT, ON_BATCH, PREDICT, WHOLE, Settings
from keras_matrix.records.store import Results, Run
from keras_matrix.records.task import PREFIX, Goal, Metric, TaskRun
from keras_matrix.runner.service.stored import update_findings
from keras_matrix.uploader.local.warehouse import LocalWarehouse
from keras_matrix.uploader.outbox import Outbox
from keras_matrix.uploader.push import push
from tests import shared
from tests.analysis.stalls.pretended import Pretended, base_settings
from tests.analysis.stalls.pretended import records as pretended
from tests.conftest import MACHINE, make_record, make_settings
from tests.sessions import run_name, store_session
from tests.synthetic_devices import scaled_run
from tests.synthetic_fc import fc_records
from tests.synthetic_peaks import VERSIONS, make_peaks

NIGHTS = 12
SLOWER_FROM = 7
REPEATS = 5
CALLS = (WHOLE, ON_BATCH, DIRECT, COMPILED)
BASE_S = {"tensorflow": 0.010, "jax": 0.020, "torch": 0.040}
HOSTILE = "<img src=x onerror=alert(1)></script><script>alert(2)</script>"


def stored(root: Path, nights: int = NIGHTS, other: str = HOSTILE) -> Results:
    """Store the nights and their findings; `other` is the workload that times out on torch.

    Each night is computed once in a run of the tests; what is returned is a copy.
    """
    with shared.locked(f"nights-{zlib.crc32(other.encode())}") as folder:
        made = Results(folder)
        if not made.runs():
            peaks.keep(folder, make_peaks())
        for night in range(len(made.runs()), nights):
            _store_night(folder, night, other)
        left_out = {"latest", *(run.run_id for run in made.runs()[nights:])}
        shutil.copytree(folder, root, dirs_exist_ok=True, ignore=lambda folder, names: left_out & {*names})
    (root / "latest").symlink_to(run_name(nights - 1))
    return Results(root)


@cache
def all_nights() -> tuple[Results, LocalWarehouse]:
    """Return all nights and their warehouse, made once in a run of the tests, for tests that only read them."""
    with shared.locked("all-nights") as folder:
        results = Results(folder / "results")
        if not results.root.exists():
            warehouse_of(stored(results.root)).close()
    return results, LocalWarehouse(results.root / "warehouse")


def _store_night(root: Path, night: int, other: str) -> None:
    folder = store_session(
        root,
        run_name(night),
        [record for backend in TRAINING_BACKENDS for record in _records(backend, night, other)],
        planned=len(TRAINING_BACKENDS) * REPEATS,
        machine=to_json(MACHINE),
        versions=VERSIONS,
        matrix_path="matrix.yaml",
        started_at="2026-01-01T02:00:00+00:00",
    )
    update_findings(Run(folder))


def plain_pages(runs: Iterable[Run]) -> list[tuple[str, str]]:
    """Return a page for each run, for a site whose pages of runs are not looked at."""
    return [(run.run_id, "<!doctype html><title>a run</title>") for run in runs]


def warehouse_of(results: Results) -> LocalWarehouse:
    """Push into the local warehouse and return it."""
    made = LocalWarehouse(results.root / "warehouse")
    made.create()
    push(results, made, Outbox(results.root / "outbox" / "local"))
    return made


def step_time_s(backend: str, night: int, repeat: int) -> float:
    """Return the time of a step with some noise; jax takes 50 % longer from one night on."""
    slow = 1.5 if backend == "jax" and night >= SLOWER_FROM else 1.0
    return BASE_S[backend] * slow * (1 + 0.004 * ((repeat * 3 + night * 5) % 7 - 3) / 3)


def _records(backend: str, night: int, other: str) -> list[Record]:
    keras = "3.15.0" if night < SLOWER_FROM else "3.16.0"
    settings = make_settings(backend=backend)
    plain = [_measured(settings, step_time_s(backend, night, r), r, keras) for r in range(REPEATS)]
    failing = make_settings(backend=backend, workload=other)
    reason = f"timeout_s: the time limit of {other} passed"
    last = _failed(failing, reason) if backend == "torch" else _measured(failing, 0.03, 0, keras)
    return [
        *plain,
        last,
        *_fc(backend),
        *_devices(backend),
        *_commands(backend, night),
        *_inputs(backend, night),
        *_calls(backend),
    ]


def _measured(settings: Settings, step_s: float, repeat: int, keras: str) -> Record:
    epochs = [step_s * 50] * 3
    times = Times(
        step_time_s=step_s,
        epoch_times_s=epochs,
        epoch_time_median_s=epochs[0],
        epoch_time_p95_s=epochs[0] * 1.02,
        first_epoch_time_s=epochs[0] + 1.5,
        first_step_time_s=1.0,
        samples_per_s=settings.batch_size / step_s,
    )
    version = {settings.backend: {"tensorflow": "2.21.0", "jax": "0.12.1", "torch": "2.13.0"}[settings.backend]}
    memory = Memory(500 << 20 if settings.backend != "torch" else 400 << 20)
    versions = {"keras": keras, **version}
    return make_record(step_s, repeat, settings=settings, times=times, memory=memory, versions=versions)


def _commands(backend: str, night: int) -> list[Record]:
    """An external command that reports its images per second."""
    settings = make_settings(backend=backend, workload=f"{PREFIX}train")
    speeds = [1 / step_time_s(backend, night, repeat) for repeat in range(REPEATS)]
    runs = [
        TaskRun("train", ["train"], "speed", [Metric("speed", one, "images/s", goal=Goal.HIGHER)]) for one in speeds
    ]
    return [make_record(None, repeat, settings=settings, task=run) for repeat, run in enumerate(runs)]


def _calls(backend: str) -> list[Record]:
    """A model that predicts, called in each way of Keras's; on torch `jit` answers otherwise."""
    resolved = Resolved(50, 32, "fork", "float32", parameters=1000, outputs_deviation=3e-7)
    records = []
    for call, part in zip(CALLS, (8.0, 1.0, 4.0, 0.5), strict=True):
        settings = make_settings(backend=backend, workload="mnist_lstm", phase=PREDICT, call=call)
        wrong = replace(resolved, outputs_deviation=0.02) if (backend, call) == ("torch", COMPILED) else resolved
        for repeat in range(REPEATS):
            call_s = step_time_s(backend, 0, repeat) * part
            made = _measured(settings, call_s, repeat, "3.15.0")
            times = replace(
                made.times,
                call_time_p50_s=call_s * 0.98,
                call_time_p99_s=call_s * 1.6,
                call_time_p50_interval_s=[call_s * 0.97, call_s * 0.99],
                call_time_p99_interval_s=[call_s * 1.4, call_s * 1.8],
            )
            records.append(replace(made, times=times, resolved=wrong))
    return records


def _inputs(backend: str, night: int) -> list[Record]:
    """The arms of a stall analysis: on jax, decoding becomes cheaper from one night on."""
    cost_s = 0.002 if backend == "jax" and night >= SLOWER_FROM else 0.004
    pipeline = Pretended(prepare_s=cost_s, prepare_cpu_s=cost_s, noise=0.01)
    return pretended(pipeline, blocks=REPEATS, cold=False, settings=base_settings(backend=backend), seed=night)


def _failed(settings: Settings, reason: str) -> Record:
    evidence = Evidence(signal=9, deadline_exceeded=True, output_tail=HOSTILE)
    return make_record(None, 0, Status.TIMEOUT, settings=settings, reason=reason, evidence=evidence)


def _fc(backend: str) -> list[Record]:
    """FC modes on one worker and two: two take 62 % of the time of one."""
    tasks = [(FcProblem("fc_data", workers, 2, 64), 1.0 if workers == 1 else 0.62) for workers in (1, 2)]
    noise = [1 + 0.002 * repeat for repeat in range(REPEATS)]
    return [r for task, part in tasks for r in fc_records(task, backend, [0.01 * part * one for one in noise])]


def _devices(backend: str) -> list[Record]:
    """A convolutional network on one device and two."""
    made = scaled_run(REPEATS, (1, 2), workload="mnist_cnn")
    return [record for record in made if record.settings.backend == backend]


def cell_of(backend: str) -> str:
    """The cell with a history."""
    return cell_id(make_settings(backend=backend))
