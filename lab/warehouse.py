"""Performance of uploader, local warehouse and pages: rows/s, queries over a million rows, a thousand cells.

    lab/run warehouse sealing            serialising and sealing, on one core
    lab/run warehouse local [RUNS]       every dashboard query over 5,000 runs of 200 measurements, warm
    lab/run warehouse report             a report of a thousand cells: its size, and when Chromium is ready
    ci/emulator run -- lab/run warehouse emulator   pushes of 100,000 rows against bare load jobs, interleaved

Prints one line a figure. docs/lab/figures.md has the results, with the machine.
"""

from __future__ import annotations

import itertools
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from keras_matrix.dashboards.live.questions import DashboardFilter, answer, questions
from keras_matrix.records.backends import TRAINING_BACKENDS
from keras_matrix.records.findings import Finding, FindingKind, Findings
from keras_matrix.records.identity import cell_id
from keras_matrix.records.schema import Learning, Memory, Record, Resolved, Surroundings, Times
from keras_matrix.records.text import percentage
from keras_matrix.uploader import rows
from keras_matrix.uploader.local.warehouse import LocalWarehouse
from keras_matrix.uploader.outbox import Outbox, seal_all
from keras_matrix.uploader.push import PushSummary, send
from keras_matrix.uploader.rows import WarehouseRow
from tests.conftest import make_record, make_settings
from tests.sessions import run_name

ROOT = Path(__file__).parents[1]
REPEATS = 4
WARM = 5
ROWS = 100_000
ROUNDS = 7


def main() -> None:
    """Run the requested measurement."""
    measurement = sys.argv[1] if len(sys.argv) > 1 else "sealing"
    with tempfile.TemporaryDirectory() as folder:
        {"sealing": sealing, "local": local, "report": report_page, "emulator": emulator}[measurement](Path(folder))


def sealing(folder: Path) -> None:
    """Serialise and seal the rows of records that are in memory."""
    all_records = [record for run in range(400) for record in records(run)]
    outbox = Outbox(folder)
    rates = []
    for number in range(WARM):
        outbox = Outbox(folder / str(number))
        with outbox.locked():
            began = time.process_time()
            seal_all((row for record in all_records for row in rows.of_record(record)), outbox)
            spent_s = time.process_time() - began
        count = sum(len(batch.lines()) for batch in outbox.pending())
        rates.append(count / spent_s)
    print(f"serialising and sealing: {statistics.median(rates):,.0f} rows/s of CPU time ({count:,} rows, {WARM} times)")


def local(folder: Path) -> None:
    """Fill the local warehouse run by run in nights of 50, and run every query."""
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else 5000
    warehouse, outbox = LocalWarehouse(folder / "warehouse"), Outbox(folder / "outbox")
    warehouse.create()
    began = time.perf_counter()
    for first in range(0, runs, 50):
        summary = PushSummary()
        with outbox.locked():
            seal_all((row for run in range(first, min(runs, first + 50)) for row in rows_of(run)), outbox)
            send(warehouse, outbox, summary, lambda text: None)
    print(f"filled in {time.perf_counter() - began:.0f} s")
    warehouse.close()
    opening(folder / "warehouse")
    files = sum(1 for _ in (folder / "warehouse").rglob("*.parquet"))
    size = sum(path.stat().st_size for path in (folder / "warehouse").rglob("*.parquet"))
    print(f"{files} files, {size / 2**20:.0f} MiB")
    cell, warehouse = cell_id(settings(0, "jax")), LocalWarehouse(folder / "warehouse")
    for name, question in questions().items():
        choice = DashboardFilter(cell=cell) if name == "trend" else DashboardFilter()
        times_s, rows_found = [], 0
        for _ in range(WARM + 1):
            began = time.perf_counter()
            rows_found = len(answer(warehouse, question, choice).rows)
            times_s.append(time.perf_counter() - began)
        print(f"{name}: {statistics.median(times_s[1:]) * 1e3:.0f} ms warm, {rows_found} rows")


# A process of its own, since the first one to open it pays for the imports.
OPEN = """
import sys, time
began = time.perf_counter()
from pathlib import Path
from keras_matrix.uploader.local.warehouse import LocalWarehouse
warehouse = LocalWarehouse(Path(sys.argv[1]))
warehouse._opened()
opened = time.perf_counter()
[(count,)] = warehouse.query("SELECT COUNT(*) AS n FROM measurements").rows
print(opened - began, time.perf_counter() - opened, count)
"""


def opening(folder: Path) -> None:
    """Open a warehouse in new processes, and count its measurements."""
    command = [sys.executable, "-c", OPEN, str(folder)]
    texts = [subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout for _ in range(WARM)]
    for stage, place in (("opened", 0), ("first query after it", 1)):
        times_s = sorted(float(line.split()[place]) for line in texts)
        print(f"{stage}: {statistics.median(times_s):.2f} s ({times_s[0]:.2f}-{times_s[-1]:.2f}), a new process each")
    print(f"{int(texts[0].split()[2]):,} measurements")


# The script run in a page: when its first frame after parsing was drawn and the thread was free again.
READY = (
    "addEventListener('DOMContentLoaded', () => requestAnimationFrame(() => setTimeout(() => "
    "{ window.readyAfterMs = performance.now() })))"
)
ANSWER = "const done = arguments[arguments.length - 1]; const look = () => window.readyAfterMs ? done([readyAfterMs, "
ANSWER += "performance.getEntriesByType('navigation')[0].domInteractive]) : setTimeout(look, 10); look()"


def report_page(folder: Path) -> None:
    """Open a report of a thousand cells, from disk, in a new browser."""
    from keras_matrix.dashboards.report import page
    from tests.dashboards import chromium, thousand

    path = folder / "report.html"
    page.write(path, thousand.page())
    print(f"a report of {thousand.CELLS:,} cells: {path.stat().st_size / 1e6:.2f} MB")
    if reason := chromium.missing():
        print(f"not opened: {reason}")
        return
    times_ms = []
    with chromium.started(folder / "profile") as browser:
        browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": READY})
        browser.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
        for _ in range(WARM + 1):
            browser.get("about:blank")
            before_ms = _main_thread_ms(browser)
            browser.get(path.as_uri())
            wall_ms = browser.execute_async_script(ANSWER)
            times_ms.append([*wall_ms, _main_thread_ms(browser) - before_ms])
        nodes = browser.execute_script("return document.querySelectorAll('*').length")
    ready, parsed, spent = (sorted(visit_ms[column] for visit_ms in times_ms[1:]) for column in (0, 1, 2))
    print(f"parsed after {statistics.median(parsed):.0f} ms ({parsed[0]:.0f}-{parsed[-1]:.0f}), {nodes:,} elements")
    print(f"first frame, and free for input, after {statistics.median(ready):.0f} ms ({ready[0]:.0f}-{ready[-1]:.0f})")
    print(f"CPU time of its main thread until then {statistics.median(spent):.0f} ms ({spent[0]:.0f}-{spent[-1]:.0f})")


def _main_thread_ms(browser: Any) -> float:
    """Return the CPU time that the page's main thread has used."""
    metrics = browser.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    return 1e3 * next(float(metric["value"]) for metric in metrics if metric["name"] == "TaskDuration")


def emulator(folder: Path) -> None:
    """Push 100,000 measurements and load the same file with a bare load job, alternating, ROUNDS times."""
    from keras_matrix.uploader.bigquery.client import connect
    from keras_matrix.uploader.warehouse import Options

    warehouse = connect(os.environ["BIGQUERY_EMULATOR_PROJECT"], "figures", Options())
    warehouse.create()
    pairs = [_round(warehouse, Outbox(folder / str(number)), number) for number in range(ROUNDS)]
    warehouse.close()
    bare, pushed = ([ROWS / pair[way] for pair in pairs] for way in ("bare", "push"))
    shares = sorted(pair["bare"] / pair["push"] for pair in pairs)
    for name, rates in (("bare load jobs", bare), ("push", pushed)):
        print(f"{name}: {statistics.median(rates):,.0f} rows/s ({min(rates):,.0f}-{max(rates):,.0f})")
    print(
        f"push reaches {percentage(statistics.median(shares))} of the bare load "
        f"({percentage(shares[0])}-{percentage(shares[-1])})"
    )


def _round(warehouse: Any, outbox: Outbox, number: int) -> dict[str, float]:
    """Return the seconds of a bare load job and of a push of the same rows; every other round begins with the push."""
    runs = range(number * 600, number * 600 + 600)
    lines = [row for run in runs for row in rows_of(run) if row.table.name == "measurements"][:ROWS]
    with outbox.locked():
        seal_all(lines, outbox)
        [batch] = outbox.pending()
        batch = replace(
            batch, path=Path(shutil.copy(batch.path, outbox.folder / "bare.ndjson"))
        )  # a push removes its own
        target, summary = f"{warehouse._staging}.bare_{batch.sha[:8]}", PushSummary()
        ways: dict[str, Callable[[], object]] = {
            "bare": lambda: warehouse._load(batch, f"bare-{batch.sha}", target, "WRITE_TRUNCATE"),
            "push": lambda: send(warehouse, outbox, summary, lambda text: None),
        }
        taken_s = {}
        for name in sorted(ways, reverse=number % 2 == 1):
            began = time.perf_counter()
            ways[name]()
            taken_s[name] = time.perf_counter() - began
    assert summary.new == ROWS
    warehouse._client.delete_table(target)
    return taken_s


def rows_of(run: int) -> Iterator[WarehouseRow]:
    """Yield the rows of one synthetic run: 200 measurements."""
    name = run_name(run)
    yield rows.of_run(name, {"planned": len(TRAINING_BACKENDS) * REPEATS})
    run_records = list(records(run))
    for record in run_records:
        yield from rows.of_record(record)
    yield from rows.of_findings(Findings(1, name, 1, list(findings(run_records))))


def settings(work: int, backend: str) -> object:
    """Return one of 20 works."""
    return make_settings(
        backend=backend, workload=("mnist_mlp", "lstm", "gru", "bert")[work % 4], batch_size=2 ** (work // 4)
    )


def records(run: int) -> Iterator[Record]:
    """Yield the records of one synthetic run of one work."""
    for backend, repeat in itertools.product(TRAINING_BACKENDS, range(REPEATS)):
        step_s = 0.01 * (1 + TRAINING_BACKENDS.index(backend)) * (1 + 0.001 * ((run * 7 + repeat) % 11))
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


def findings(all_records: list[Record]) -> Iterator[Finding]:
    """Yield the number of findings of a run of one work."""
    kinds = [(FindingKind.FIGURE, f"times.{name}") for name in ("step_time_s", "samples_per_s", "first_epoch_time_s")]
    kinds += [(FindingKind.FIGURE, "memory.peak_host_memory_bytes"), (FindingKind.FIGURE, "times.epoch_time_median_s")]
    kinds += [
        (FindingKind.RATIO, "times.step_time_s"),
        (FindingKind.SESSION, "times.step_time_s"),
        (FindingKind.LEVEL, "times.step_time_s"),
    ]
    for record in all_records[::REPEATS]:
        for kind, metric in kinds:
            yield Finding(
                kind,
                metric,
                record.settings.workload,
                "synthetic",
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
