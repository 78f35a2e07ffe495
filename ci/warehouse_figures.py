"""What the uploader and the local warehouse reach on this machine: rows/s sealed and merged, queries over a million.

    python ci/warehouse_figures.py sealing            serialising and sealing, on one core
    python ci/warehouse_figures.py local [RUNS]       every dashboard query over 5,000 runs of 200 measurements, warm
    ci/emulator run -- python ci/warehouse_figures.py emulator     a push of 100,000 rows against a bare load job

Prints one line a figure. docs/figures.md holds what it printed, with the machine.
"""

from __future__ import annotations

import itertools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from dashboards.questions import Choice, answer, questions
from records.findings import Finding, Findings, Kind
from records.identity import cell_id
from records.schema import Learning, Memory, Record, Resolved, Surroundings, Times
from records.settings import BACKENDS
from tests.conftest import make_record, make_settings
from tests.sessions import run_name
from uploader import rows
from uploader.local import LocalWarehouse
from uploader.outbox import Outbox, seal_all
from uploader.push import Pushed, send
from uploader.rows import Row

REPEATS = 4
EPOCHS = 15
WARM = 5


def main() -> None:
    """Measure what is asked for."""
    what = sys.argv[1] if len(sys.argv) > 1 else "sealing"
    with tempfile.TemporaryDirectory() as folder:
        {"sealing": sealing, "local": local, "emulator": emulator}[what](Path(folder))


def sealing(folder: Path) -> None:
    """Serialise and seal the rows of records that are in memory."""
    found = [record for run in range(400) for record in records(run)]
    outbox = Outbox(folder)
    rates = []
    for number in range(WARM):
        outbox = Outbox(folder / str(number))
        with outbox.locked():
            began = time.process_time()
            seal_all((row for record in found for row in rows.of_record(record)), outbox)
            spent_s = time.process_time() - began
        count = sum(len(batch.lines()) for batch in outbox.pending())
        rates.append(count / spent_s)
    print(f"serialising and sealing: {statistics.median(rates):,.0f} rows/s of CPU time ({count:,} rows, {WARM} times)")


def local(folder: Path) -> None:
    """Fill the local warehouse run by run in nights of 50, and ask every question."""
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else 5000
    warehouse, outbox = LocalWarehouse(folder / "warehouse"), Outbox(folder / "outbox")
    warehouse.create()
    began = time.perf_counter()
    for first in range(0, runs, 50):
        done = Pushed()
        with outbox.locked():
            seal_all((row for run in range(first, min(runs, first + 50)) for row in rows_of(run)), outbox)
            send(warehouse, outbox, done, lambda text: None)
    print(f"filled in {time.perf_counter() - began:.0f} s")
    warehouse.close()
    began = time.perf_counter()
    warehouse = LocalWarehouse(folder / "warehouse")
    count = warehouse.query("SELECT COUNT(*) AS n FROM measurements").rows[0][0]
    print(f"opened and counted {count:,} measurements in {time.perf_counter() - began:.2f} s")
    files = sum(1 for _ in (folder / "warehouse").rglob("*.parquet"))
    size = sum(path.stat().st_size for path in (folder / "warehouse").rglob("*.parquet"))
    print(f"{files} files, {size / 2**20:.0f} MiB")
    cell = cell_id(settings(0, "jax"))
    for name, question in questions().items():
        choice = Choice(cell=cell) if name == "trend" else Choice()
        times_s, rows_found = [], 0
        for _ in range(WARM + 1):
            began = time.perf_counter()
            rows_found = len(answer(warehouse, question, choice).rows)
            times_s.append(time.perf_counter() - began)
        print(f"{name}: {statistics.median(times_s[1:]) * 1e3:.0f} ms warm, {rows_found} rows")


def emulator(folder: Path) -> None:
    """Push 100,000 measurements, and load the same files with bare load jobs."""
    from uploader.connect import connect
    from uploader.warehouse import Options

    project = os.environ["BIGQUERY_EMULATOR_PROJECT"]
    warehouse = connect(project, "figures", Options())
    warehouse.create()
    lines = [row for run in range(600) for row in rows_of(run) if row.table.name == "measurements"][:100_000]
    outbox, done = Outbox(folder), Pushed()
    with outbox.locked():
        seal_all(lines, outbox)
        began = time.perf_counter()
        for batch in outbox.pending():
            warehouse._load(batch, f"bare-{batch.sha}", f"{warehouse._staging}.bare_{batch.sha[:8]}", "WRITE_TRUNCATE")
        bare_s = time.perf_counter() - began
        began = time.perf_counter()
        send(warehouse, outbox, done, lambda text: None)
        pushed_s = time.perf_counter() - began
    warehouse.close()
    print(f"bare load jobs: {len(lines) / bare_s:,.0f} rows/s; push: {len(lines) / pushed_s:,.0f} rows/s")
    print(f"push reaches {bare_s / pushed_s:.0%} of the bare load ({done.new:,} new rows)")


def rows_of(run: int) -> Iterator[Row]:
    """Yield the rows of one made-up run: 200 measurements."""
    name = run_name(run)
    yield rows.of_run(name, {"planned": len(BACKENDS) * REPEATS})
    found = list(records(run))
    for record in found:
        yield from rows.of_record(record)
    yield from rows.of_findings(Findings(1, name, 1, list(findings(found))))


def settings(work: int, backend: str) -> object:
    """Return one of 20 works."""
    return make_settings(
        backend=backend, workload=("mnist_mlp", "lstm", "gru", "bert")[work % 4], batch_size=2 ** (work // 4)
    )


def records(run: int) -> Iterator[Record]:
    """Yield the records of one made-up run of one work."""
    for backend, repeat in itertools.product(BACKENDS, range(REPEATS)):
        step_s = 0.01 * (1 + BACKENDS.index(backend)) * (1 + 0.001 * ((run * 7 + repeat) % 11))
        times = Times(
            step_time_s=step_s,
            epoch_times_s=[step_s * 50] * 5,
            first_epoch_time_s=2.0,
            samples_per_s=32 / step_s,
        )
        record = make_record(step_s, repeat, settings=settings(run % 20, backend), times=times)
        yield replace(
            record,
            run_id=run_name(run),
            learning=Learning([1.0, 0.9, 0.8, 0.7, 0.6]),
            memory=Memory(500 << 20),
            surroundings=Surroundings(0.1, 0.2, 0.0),
            resolved=Resolved(50, 32, "fork", "float32", parameters=1000),
            versions={"keras": "3.15.0", backend: "1.0"},
        )


def findings(found: list[Record]) -> Iterator[Finding]:
    """Yield as many findings as a run of one work has."""
    kinds = [(Kind.FIGURE, f"times.{name}") for name in ("step_time_s", "samples_per_s", "first_epoch_time_s")]
    kinds += [(Kind.FIGURE, "memory.peak_host_memory_bytes"), (Kind.FIGURE, "times.epoch_time_median_s")]
    kinds += [(Kind.RATIO, "times.step_time_s"), (Kind.SESSION, "times.step_time_s"), (Kind.LEVEL, "times.step_time_s")]
    for record in found[::REPEATS]:
        for kind, metric in kinds:
            yield Finding(
                kind,
                metric,
                record.settings.workload,
                "made up",
                1,
                work_id=record.cell_id,
                cell_id=record.cell_id,
                workload=record.settings.workload,
                backend=record.settings.backend,
                host_id="0" * 16,
                estimate=record.times.step_time_s,
                facts={"keras": "3.15.0"},
            )


if __name__ == "__main__":
    main()
