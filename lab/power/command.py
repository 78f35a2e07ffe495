"""Record blocks of equal and of slowed-down processes on this machine, and compute the power of comparisons.

    lab/run power record FOLDER [--condition quiet|loaded] [--backend NAME]   measure: minutes a backend, quiet
    lab/run power keep FOLDER                   put the measurements into lab/recordings
    lab/run power tables [--write]              power, false alarms, smallest slowdown found, from lab/recordings

`record` interleaves three arms, as `runner selftest` interleaves two: `base`, `same`, which is equal, and `slower`,
which has an injected fault. Under the condition `loaded` one process a CPU is busy and idle at random times fixed by a
seed. Sessions of `runner selftest` are stored in the same way, under the condition `selftest`. The tables are in
docs/lab/power.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import random
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from keras_matrix.records.text import percentage, percentage_interval
from lab.power import draws

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "lab" / "power.md"
BEGIN, END = "<!-- power: begin -->", "<!-- power: end -->"
RECORDINGS = ROOT / "lab" / "recordings"
BACKENDS = ("tensorflow", "jax", "torch")
BLOCKS = {"quiet": 16, "loaded": 12}
# About a tenth of a second an epoch on one CPU of the machine of the recordings, so that arms alternate often.
STEPS = {"tensorflow": 5, "jax": 6, "torch": 2}
# Extra work that makes a step about 5 % slower: its actual effect is in the recording and in the tables.
PLANTED = {"tensorflow": "slower:0.12", "jax": "slower:0.1", "torch": "slower:0.1"}
# As many as make a block's measuring last about as long as its starting.
EPOCHS = 33
# PyTorch and JAX give back memory in every step that they ask for again in the next (docs/noise.md).
FREED = {"tensorflow": "returned", "jax": "kept", "torch": "kept"}
DISCARD = 3  # PyTorch's first epochs of so few steps are its warm-up
BUDGETS_S = {"quiet": 120.0, "loaded": 300.0}
SLOWDOWNS = (0.0, 0.01, 0.02, 0.03, 0.05, 0.07, 0.10)
MEAN_SPELL_S = 4.0
SEED = 20261121
# A row is one measured attempt at one process.
COLUMNS = {
    "condition": "VARCHAR",
    "session": "VARCHAR",
    "arm": "VARCHAR",
    "fault": "VARCHAR",
    "backend": "VARCHAR",
    "cell_id": "VARCHAR",
    "block": "INTEGER",
    "attempt": "INTEGER",
    "started_at": "VARCHAR",
    "wall_time_s": "DOUBLE",
    "import_time_s": "DOUBLE",
    "step_time_s": "DOUBLE",
    "first_epoch_time_s": "DOUBLE",
    "epoch_times_s": "DOUBLE[]",
    "disturbed": "VARCHAR",
    "other_cpu_share": "DOUBLE",
    "steal_share": "DOUBLE",
}


def record(folder: Path, condition: str, backend: str, blocks: int) -> None:
    """Measure one session of three arms, in `folder`/`condition`."""
    from keras_matrix.runner.executors import registry
    from keras_matrix.runner.matrix.overrides import Overrides
    from keras_matrix.runner.measure.experiment import Experiment, measured, own_arm
    from keras_matrix.runner.measure.request import CellChoice, RunRequest
    from keras_matrix.runner.progress.lines import TerminalDisplay

    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "matrix.yaml"
        path.write_text(
            f"version: 1\nbackends: [{backend}]\ncells:\n  - workload: mnist_mlp\n    threads: 1\n"
            f"    epochs: {EPOCHS}\n    discard: {DISCARD}\n    freed_memory: {FREED[backend]}\n"
            f"    steps_per_epoch: {STEPS[backend]}\n    repeats: {blocks}\n"
        )
        request = RunRequest(
            ("lab/run power",),
            CellChoice(path, Overrides()),
            folder / condition,
            registry.chosen(registry.DEFAULT, None, {}),
            new=True,
        )
        matrix, cells = request.choice.load()
        arms = {
            "base": own_arm(request, cells),
            "same": own_arm(request, cells),
            "slower": own_arm(request, cells, PLANTED[backend]),
        }
        experiment = Experiment(cells, request.choice.about(matrix.left_out), arms)
        with load() if condition == "loaded" else contextlib.nullcontext():
            measured(request, experiment, TerminalDisplay(quiet=False))


@contextlib.contextmanager
def load(seed: int = SEED) -> Iterator[None]:
    """Keep one process a CPU alternately busy and idle meanwhile, for random times, all at the same times."""
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=_busy, args=(seed, cpu), daemon=True) for cpu in os.sched_getaffinity(0)]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.terminate()
            process.join()


def _busy(seed: int, cpu: int) -> None:
    os.sched_setaffinity(0, {cpu})
    spells = random.Random(seed)
    while True:
        until_s = time.monotonic() + spells.expovariate(1 / MEAN_SPELL_S)
        while time.monotonic() < until_s:
            sum(range(10_000))
        time.sleep(spells.expovariate(1 / MEAN_SPELL_S))


def rows(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield one row for each measured process attempt of every run under `folder`; its folders name the conditions."""
    from keras_matrix.records.schema import MEASURED
    from keras_matrix.records.store import Results

    for condition in sorted(path for path in folder.iterdir() if path.is_dir()):
        for run in Results(condition).runs():
            about = run.about()
            for stored_record in run.load()[0]:
                if stored_record.status in MEASURED and stored_record.times.step_time_s:
                    yield {
                        "condition": condition.name.partition(".")[0],
                        "session": about["session"],
                        "arm": {"new": "same"}.get(about["arm"], about["arm"]),
                        "fault": about["arms"][about["arm"]]["fault"],
                        "backend": stored_record.settings.backend,
                        "cell_id": stored_record.cell_id,
                        "block": stored_record.repeat,
                        "attempt": stored_record.attempt,
                        "started_at": stored_record.started_at,
                        "wall_time_s": stored_record.harness.wall_time_s,
                        "import_time_s": stored_record.times.import_time_s,
                        "step_time_s": stored_record.times.step_time_s,
                        "first_epoch_time_s": stored_record.times.first_epoch_time_s,
                        "epoch_times_s": stored_record.times.epoch_times_s,
                        "disturbed": stored_record.surroundings.disturbed,
                        "other_cpu_share": stored_record.surroundings.other_cpu_share,
                        "steal_share": stored_record.surroundings.steal_share,
                    }


def keep(folder: Path) -> None:
    """Write the measurements under `folder` to one file a condition in lab/recordings."""
    import duckdb

    by_condition: dict[str, list[dict[str, Any]]] = {}
    for row in rows(folder):
        by_condition.setdefault(row["condition"], []).append(row)
    RECORDINGS.mkdir(exist_ok=True)
    for condition, condition_rows in by_condition.items():
        path = RECORDINGS / f"{condition}.parquet"
        with tempfile.NamedTemporaryFile("w", suffix=".ndjson") as lines:
            lines.writelines(json.dumps(row) + "\n" for row in condition_rows)
            lines.flush()
            read = f"read_json('{lines.name}', columns = {COLUMNS})"
            duckdb.sql(f"COPY (FROM {read}) TO '{path}' (FORMAT parquet, COMPRESSION zstd)")
        print(f"{path.relative_to(ROOT)}: {len(condition_rows)} processes, {path.stat().st_size / 1e3:.0f} kB")


def stored(condition: str) -> list[dict[str, Any]]:
    """Return the recorded rows of a condition, empty if it was not recorded."""
    import duckdb

    path = RECORDINGS / f"{condition}.parquet"
    if not path.exists():
        return []
    relation = duckdb.sql(f"SELECT * FROM '{path}'")
    return [dict(zip(relation.columns, row, strict=True)) for row in relation.fetchall()]


def tables() -> Iterator[str]:
    """Yield the lines of the document's measured part."""

    recorded = {condition: draws.recordings(stored(condition)) for condition in BUDGETS_S}
    yield f"{datetime.now(UTC):%Y-%m-%d}, `lab/run power tables`, seed {SEED}."
    yield from recorded_table(recorded)
    yield from power_table(recorded)
    yield from rival_table(recorded)
    yield from alarm_table()


def head(*names: str) -> Iterator[str]:
    """Yield an empty line and the head of a table."""
    yield ""
    yield f"| {' | '.join(names)} |"
    yield "|" + "---|" * len(names)


def recorded_table(recorded: dict[str, list[Any]]) -> Iterator[str]:
    """Yield the recordings: blocks, their cost, their scatter, and the actual cost of the injected work."""
    from keras_matrix.analysis.stats.blocks import of_logs

    yield from head("recording", "blocks", "a block of two", "scatter of the ratio", "same / base", "slower / base")
    for condition, recordings in recorded.items():
        for recording in recordings:
            logs = recording.logs(draws.SAME)
            ratios = [of_logs(recording.logs(arm).tolist()) for arm in (draws.SAME, draws.SLOWER)]
            shown = " | ".join(map(_ratio, ratios))
            cost = f"{recording.block_cost_s(draws.SAME):.1f} s | {percentage(logs.std(ddof=1))} | {shown}"
            yield f"| {condition}, {recording.backend} | {len(logs)} | {cost} |"


def _ratio(ratio: Any) -> str:
    if ratio is None or ratio.low is None:
        return "-"
    return f"{ratio.centre:.3f} [{ratio.low:.3f} {ratio.high:.3f}]"


def power_table(recorded: dict[str, list[Any]]) -> Iterator[str]:
    """Yield the power curves: by the interval of `compare`, and by the gate, within each condition's budget."""

    generator = np.random.default_rng(SEED)
    columns = ["none" if not slowdown else percentage(slowdown) for slowdown in SLOWDOWNS]
    yield from head("found slower, of 100", "budget", "blocks", *columns, "as planted")
    for condition, recordings in recorded.items():
        for recording in recordings:
            count = draws.affordable(recording, draws.SAME, BUDGETS_S[condition])
            for name, finds, inner in (("interval", draws.by_interval, draws.INNER), ("gate", draws.by_gate, 50)):
                shares, drawn = [], draws.Draws(generator, inner)
                for slowdown in SLOWDOWNS:
                    logs = recording.logs(draws.SAME)
                    if slowdown:
                        shares.append(_share(draws.power(logs, count, finds, drawn, slowdown)))
                    else:
                        alarms = draws.false_alarms(logs, count, finds, generator)
                        shares.append("-" if alarms is None else f"{100 * alarms:.1f}")
                shares.append(_share(draws.power(recording.logs(draws.SLOWER), count, finds, drawn)))
                budget = f"{BUDGETS_S[condition]:.0f} s | {count}"
                yield f"| {condition}, {recording.backend}, {name} | {budget} | {' | '.join(shares)} |"


def _share(share: Any) -> str:
    return "-" if share is None else f"{100 * share.share:.0f} [{100 * share.low:.0f} {100 * share.high:.0f}]"


def rival_table(recorded: dict[str, list[Any]]) -> Iterator[str]:
    """Yield the smallest slowdown found, next to that of one process and one mean an arm, at the same budget."""

    generator = np.random.default_rng(SEED)
    yield from head("smallest slowdown found", "budget", "ours", "one process and one mean an arm", "share")
    for condition, recordings in recorded.items():
        for recording in recordings:
            budget_s = BUDGETS_S[condition]
            our_figure = draws.ours(
                recording.logs(draws.SAME), draws.affordable(recording, draws.SAME, budget_s), generator
            )
            their_figure = draws.one_process_each(recording, budget_s, generator)
            share = f"{our_figure / their_figure:.2f}" if our_figure and their_figure else "-"
            shown = [percentage(value) if value is not None else "-" for value in (our_figure, their_figure)]
            yield f"| {condition}, {recording.backend} | {budget_s:.0f} s | {shown[0]} | {shown[1]} | {share} |"


def alarm_table() -> Iterator[str]:
    """Yield how often comparisons of two equal arms, five blocks each, excluded 1: all recordings, no draws."""
    from keras_matrix.analysis.selftest import Rate
    from keras_matrix.analysis.stats.blocks import MIN_BLOCKS, of_logs

    yield from head("two equal arms, as measured", "sessions", "comparisons", "exclude 1", "95 % interval", "p of 5 %")
    counted: dict[str, list[bool]] = {}
    sessions: dict[str, set[str]] = {}
    for condition in ("quiet", "loaded", "selftest"):
        rows_of = stored(condition)
        for session in sorted({(row["session"], row["cell_id"]) for row in rows_of}):
            session_rows = [row for row in rows_of if (row["session"], row["cell_id"]) == session]
            for recording in draws.recordings(session_rows):
                logs = recording.logs(draws.SAME).tolist()
                cut = [logs[start : start + MIN_BLOCKS] for start in range(0, len(logs) - MIN_BLOCKS + 1, MIN_BLOCKS)]
                for name in (f"{condition}, {recording.backend}", "all"):
                    counted.setdefault(name, []).extend(of_logs(piece).excludes(1.0) for piece in cut)  # type: ignore[union-attr]
                    sessions.setdefault(name, set()).add(session[0])
    for name in sorted(counted, key=lambda name: (name == "all", name)):
        rate = Rate(sum(counted[name]), len(counted[name]))
        low, high = rate.interval() or (0.0, 1.0)
        share = f"{rate.count} of {rate.of} ({percentage(rate.share or 0)})"
        interval = f"{percentage_interval(low, high)} | {rate.p_value(0.05):.2f}"
        yield f"| {name} | {len(sessions[name])} | {rate.of} | {share} | {interval} |"


def main() -> None:
    """Run a command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, dest="command")
    recording = commands.add_parser("record", help="measure three interleaved arms")
    recording.add_argument("folder", type=Path)
    recording.add_argument("--condition", choices=list(BUDGETS_S), action="append")
    recording.add_argument("--backend", choices=BACKENDS, action="append")
    recording.add_argument("--blocks", type=int, help="blocks a backend, instead of the condition's own number")
    keeping = commands.add_parser("keep", help="put the measurements into lab/recordings")
    keeping.add_argument("folder", type=Path)
    writing = commands.add_parser("tables", help="print the tables of the recordings")
    writing.add_argument("--write", action="store_true", help=f"put it into {DOCUMENT.relative_to(ROOT)}")
    args = parser.parse_args()
    if args.command == "record":
        for condition in args.condition or BUDGETS_S:
            for backend in args.backend or BACKENDS:
                record(args.folder, condition, backend, args.blocks or BLOCKS[condition])
    elif args.command == "keep":
        keep(args.folder)
    else:
        lines = list(tables())
        print("\n".join(lines))
        if args.write:
            before, _, remainder = DOCUMENT.read_text().partition(BEGIN)
            DOCUMENT.write_text(f"{before}{BEGIN}\n\n" + "\n".join(lines) + f"\n\n{END}{remainder.partition(END)[2]}")


if __name__ == "__main__":
    main()
