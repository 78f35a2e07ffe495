"""Reads from many stored runs only the fields of each attempt that a history needs.

Changes no file. A file that cannot be read is reported as a `Problem` and skipped, so that one damaged file does not
hide the other runs. Only fields that a history needs are checked; `records.store.Run.load` is the strict reader. Clock
steps are reported if the files show them; a step between two runs that left no trace in the folder is not detected.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from keras_matrix.records.codec import CodecError, may_have_surrogates, without_surrogates
from keras_matrix.records.files import read_json, read_plain, refuse_links
from keras_matrix.records.schema import SCHEMA_VERSION, Status
from keras_matrix.records.store import RECORD_LIMIT_BYTES, RECORD_NAME, Problem, Results, Run
from keras_matrix.records.task import Goal, Metric
from keras_matrix.records.validity import LARGEST, SMALLEST, check_names, migrated

Wanted = Callable[[str, str, str], bool]
Facts = tuple[tuple[str, str], ...]

# In a run's `stopping`: that of `runner quick`.
QUICK = "quick"
MACHINE_FACTS = ("kernel", "gpu_driver", "os", "cpu_model", "logical_cpus", "memory_bytes", "container", "machine_type")
RESOLVED_FACTS = (
    "precision",
    "jit_compile",
    "tf32",
    "tf32_matmul",
    "tf32_convolution",
    "tf32_rnn",
    "intra_op_threads",
    "cpus",
    "affinity",
    "image_data_format",
    "parameters",
    "steps_per_epoch",
    "start",
)


@dataclass(frozen=True, slots=True)
class Attempt:
    """The fields of one attempt that a history needs. `facts` are versions, machine and resolved settings, by name.

    `value` is its step time in seconds; for an external command its primary metric, None unless that is above zero.
    """

    cell_id: str
    repeat: int
    attempt: int
    status: Status
    value: float | None
    started_at: str
    host_id: str
    device: tuple[str, str] | None
    facts: Facts


@dataclass(frozen=True, slots=True)
class PastRun:
    """One run, with the attempts at the selected cells."""

    run_id: str
    root: Path
    attempts: tuple[Attempt, ...]

    @property
    def hosts(self) -> frozenset[str]:
        """The machines on which it was measured."""
        return frozenset(attempt.host_id for attempt in self.attempts)


@dataclass(frozen=True, slots=True)
class Past:
    """Runs, oldest first; the stored settings of each cell; files that were skipped, and caveats.

    `primaries` are the metrics of external commands by cell, without values.
    """

    runs: tuple[PastRun, ...]
    settings: Mapping[str, Mapping[str, Any]]
    primaries: Mapping[str, Metric]
    problems: tuple[Problem, ...]
    caveats: tuple[str, ...]


def read(results_folders: Sequence[Path], selection: Wanted | None = None) -> Past:
    """Read the runs of these results folders.

    `wanted(cell_id, workload, backend)` selects the cells and is called once for each; None selects all.
    """
    reader = _Reader(selection)
    runs: dict[str, PastRun] = {}
    for root in results_folders:
        reader.problems += Results(root).left_out()
        for run in Results(root).runs():
            if run.run_id in runs:
                reader.caveats.append(f"{run.folder}: run {run.run_id} was already read from {runs[run.run_id].root}")
            elif (past_run := reader.run(run, root)) is not None:
                runs[run.run_id] = past_run
    ordered = tuple(runs[run_id] for run_id in sorted(runs))
    caveats = [
        *(d for root in results_folders for d in _latest_caveats(root)),
        *_clock_caveats(ordered),
        *reader.caveats,
    ]
    return Past(ordered, reader.settings, reader.primaries, tuple(reader.problems), tuple(caveats))


class _Reader:
    """Reads runs one by one and stores what they share: settings by cell, facts, and the selection of cells."""

    def __init__(self, selection: Wanted | None) -> None:
        self._wanted = selection
        self._chosen: dict[str, bool] = {}
        self._shared: dict[Facts, Facts] = {}
        self.settings: dict[str, dict[str, Any]] = {}
        self.primaries: dict[str, Metric] = {}
        self.problems: list[Problem] = []
        self.caveats: list[str] = []

    def run(self, run: Run, root: Path) -> PastRun | None:
        """Return a run's attempts; None if it cannot be read, or if another run represents its session."""
        try:
            about = read_json(run.folder / "run.json")
            refuse_links(run.folder / "records", run.folder)
            names = sorted(os.listdir(run.folder / "records"))  # noqa: PTH208 - a Path a file costs as much as reading it
        except (OSError, CodecError) as error:
            self.problems.append(Problem(run.folder, str(error)))
            return None
        if reason := left_out(about):
            self.caveats.append(f"run {run.run_id} is left out: {reason}")
            return None
        folder = str(run.folder / "records")
        record_names = [name for name in names if not name.startswith(".") and name != "corrupt"]
        attempts = [self._attempt(f"{folder}/{name}", name, run.run_id) for name in record_names]
        return PastRun(run.run_id, root, tuple(attempt for attempt in attempts if attempt is not None))

    def _attempt(self, path: str, name: str, run_id: str) -> Attempt | None:
        if self._chosen.get(name[:16]) is False:
            return None
        try:
            data = _read_object(path, name, run_id)
            cell_id = name[:16]
            if cell_id not in self._chosen:
                self._choose(cell_id, data["settings"])
            return self._decoded(data, name) if self._chosen[cell_id] else None
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            texts = {KeyError: "field {} is missing", TypeError: "not a record: {}", AttributeError: "not a record: {}"}
            self.problems.append(Problem(Path(path), texts.get(type(error), "{}").format(error)))
            return None

    def _choose(self, cell_id: str, settings: dict[str, Any]) -> None:
        is_chosen = self._wanted is None or self._wanted(cell_id, str(settings["workload"]), str(settings["backend"]))
        self._chosen[cell_id] = is_chosen
        if is_chosen:
            self.settings[cell_id] = settings

    def _decoded(self, data: dict[str, Any], name: str) -> Attempt:
        if name != f"{data['cell_id']}.{data['repeat']}.{data['attempt']}.json":
            raise ValueError("contains the record of another attempt")
        facts = _facts(data)
        device = data["device"]
        return Attempt(
            cell_id=data["cell_id"],
            repeat=data["repeat"],
            attempt=data["attempt"],
            status=Status(data["status"]),
            value=self._value(data),
            started_at=str(data["started_at"]),
            host_id=str(data["machine"]["host_id"]),
            device=(str(device["platform"]), str(device.get("model") or device["name"])) if device else None,
            facts=self._shared.setdefault(facts, facts),
        )

    def _value(self, data: Mapping[str, Any]) -> float | None:
        task = data.get("task")
        if task is None:
            return _duration(data["times"].get("step_time_s"))
        stored_metric = next((metric for metric in task["metrics"] if metric["name"] == task["primary"]), None)
        if stored_metric is None:
            return None
        primary = Metric(str(stored_metric["name"]), None, stored_metric.get("unit"), goal=Goal(stored_metric["goal"]))
        self.primaries.setdefault(data["cell_id"], primary)
        value = stored_metric["value"]
        if value is None:
            return None
        if not isinstance(value, (int, float)) or not math.isfinite(value):
            raise ValueError(f"task.metrics: must be finite numbers, got {value!r}")
        return float(value) if value > 0 else None


def left_out(about: object) -> str | None:
    """Return why a history excludes a run: a quick look, or another arm represents its session. None for the others.

    Of the arms without an injected fault it is the first with the runner's own Python; if every arm has another
    environment, the last, which is the new one. A base pinned for a gate would give a history without changes.
    """
    if not isinstance(about, dict):
        return "its run.json is not a JSON object"
    if about.get("stopping") == QUICK:
        return "a quick look: one process of each cell, not measured again if it was disturbed"
    arms, arm = about.get("arms"), about.get("arm")
    if not isinstance(arms, dict) or not isinstance(arm, str) or arm not in arms:
        return None
    if isinstance(arms[arm], dict) and arms[arm].get("fault"):
        return f"the fault {arms[arm]['fault']!r} was injected into it"
    arm_by_name = {name: arm if isinstance(arm, dict) else {} for name, arm in arms.items()}
    faultless_names = [name for name, arm in arm_by_name.items() if not arm.get("fault")]
    chosen_arm = next(
        (name for name in faultless_names if arm_by_name[name].get("python") is None), faultless_names[-1]
    )
    return None if arm == chosen_arm else f"the arm {chosen_arm!r} represents its session, this is {arm!r}"


def _read_object(path: str, name: str, run_id: str) -> dict[str, Any]:
    if not RECORD_NAME.fullmatch(name):
        raise ValueError("not the name of a record")
    raw = read_plain(path, RECORD_LIMIT_BYTES)
    try:
        data = json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from error
    if may_have_surrogates(raw) and isinstance(data, dict):
        check_names(data)
        data = without_surrogates(data)
    version = data["schema_version"] if isinstance(data, dict) else None
    if not isinstance(version, int) or version > SCHEMA_VERSION:
        raise ValueError(
            f"schema_version: must be an integer up to {SCHEMA_VERSION}, got {version!r}; update the runner"
        )
    if data["run_id"] != run_id:
        raise ValueError(f"run_id: must be {run_id}, the run of its folder, got {data['run_id']!r}")
    return dict(migrated(data))


def _duration(value: object) -> float | None:
    if value is None:
        return None
    if not isinstance(value, (int, float)) or not math.isfinite(value) or value <= 0:
        raise ValueError(f"times.step_time_s: must be a positive number, got {value!r}")
    if not SMALLEST <= value <= LARGEST:
        raise ValueError(f"times.step_time_s: must be between {SMALLEST:g} and {LARGEST:g}, got {value!r}")
    return float(value)


def _facts(data: Mapping[str, Any]) -> Facts:
    versions, machine, resolved = data["versions"], data["machine"], data["resolved"] or {}
    gpus = machine.get("gpus")
    # A number of steps that a session calibrated follows from its speed and does not explain it.
    is_calibrated = data["settings"].get("steps_per_epoch") == "auto"
    names = [name for name in RESOLVED_FACTS if not (is_calibrated and name == "steps_per_epoch")]
    return (
        *((name, str(version)) for name, version in versions.items()),
        *((name, str(machine[name])) for name in MACHINE_FACTS if machine.get(name) is not None),
        *((("gpus", ", ".join(map(str, gpus))),) if gpus else ()),
        *((name, str(resolved[name])) for name in names if resolved.get(name) is not None),
    )


def _latest_caveats(root: Path) -> Iterable[str]:
    """Yield a caveat if the link `latest` does not name the run that sorts last."""
    run_ids = [run.run_id for run in Results(root).runs()]
    try:
        latest = (root / "latest").readlink().name
    except OSError:
        return
    if latest in run_ids and latest[:16] < max(run_ids)[:16]:
        yield (
            f"{root}: run {latest} was started last, but {max(run_ids)} sorts after it: the clock was set back between "
            "them; runs are listed in the order of their timestamps"
        )


def _clock_caveats(runs: Sequence[PastRun]) -> Iterable[str]:
    """Yield a caveat for processes that began before their run, and for runs that began amid an earlier one."""
    last_by_host: dict[tuple[Path, str], tuple[datetime, str]] = {}
    for run in runs:
        if (begun := _moment(run.run_id[:16])) is None:  # the name of a folder, which may be that of no day
            continue
        for host in sorted(run.hosts):
            times = [t for a in run.attempts if a.host_id == host and (t := _moment(a.started_at))]
            if times and min(times) < begun:
                yield (
                    f"run {run.run_id}: a process began at {min(times):%Y-%m-%d %H:%M:%S}, before its run: the clock "
                    "was set back during the run"
                )
            last_process = last_by_host.get((run.root, host))
            if last_process and begun < last_process[0]:
                yield (
                    f"run {run.run_id} began before the last process of {last_process[1]} "
                    f"({last_process[0]:%Y-%m-%d %H:%M:%S}): "
                    "that run was continued later, or the clock was set back; they are listed by their start"
                )
            if times and (last_process is None or max(times) > last_process[0]):
                last_by_host[run.root, host] = max(times), run.run_id


def _moment(label: str) -> datetime | None:
    try:
        when = datetime.fromisoformat(label)
    except ValueError:
        return None
    return when if when.tzinfo else when.replace(tzinfo=UTC)
