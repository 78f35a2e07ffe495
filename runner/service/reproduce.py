"""Measures a stored cell again, with the versions and settings of its record."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from keras_matrix.analysis.regression.reproduction import Reproduction, judge
from keras_matrix.records.backends import KERAS_HUB, TABLE
from keras_matrix.records.schema import Record, Status
from keras_matrix.records.store import RECORD_NAME, Run, latest_attempts
from keras_matrix.records.task import PREFIX
from keras_matrix.runner.environments.rebuilt import CannotRebuild, cache_folder, environment, installable, recipe_of
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.executors.process import interpreter
from keras_matrix.runner.matrix import catalog
from keras_matrix.runner.matrix.reader import Cell
from keras_matrix.runner.measure.experiment import Display, Experiment, measured, origin, own_arm
from keras_matrix.runner.measure.request import RunRequest
from keras_matrix.runner.plan.session import ArmRequest
from keras_matrix.runner.service import cells
from keras_matrix.runner.service.cells import stored_cell
from keras_matrix.runner.service.histories import spread_stored
from keras_matrix.runner.service.run import Finished, finished
from keras_matrix.runner.service.stored import chosen_run

LEAST_REPEATS, MOST_REPEATS = 5, 1000  # by default at least as many as an interval over blocks needs


@dataclass(frozen=True, slots=True)
class ReproducedCell:
    """The cell that is measured again: its run, and the latest attempts at its repeats."""

    run: Run
    records: list[Record]

    @property
    def image(self) -> str | None:
        """The digest of the image that it was measured in, if any."""
        container = self.records[0].container
        return None if container is None else container.image_id

    @property
    def start(self) -> str | None:
        """How its processes were started, in the terms of --start."""
        resolved = self.records[0].resolved
        if resolved is None:
            return None
        return "warm" if self.image and resolved.start == "fork" else resolved.start

    def cell(self, repeats: int | None) -> Cell:
        """The cell as it was measured, with at least five processes."""
        return stored_cell(self.records, repeats or max(LEAST_REPEATS, len(self.records)))


def stored(name: str, results: Path, run_id: str | None) -> ReproducedCell:
    """Return the stored cell that the file of a record or a cell's name stands for. Raises `UsageError`."""
    path = Path(name)
    name_match = RECORD_NAME.fullmatch(path.name)
    if path.suffix == ".json" and not path.is_file():
        raise UsageError(f"RECORD: {path} does not exist")
    if not name_match and path.suffix == ".json":
        raise UsageError(f"RECORD: {path} is not a record, whose file is named CELL.REPEAT.ATTEMPT.json")
    run = Run(path.resolve().parent.parent) if name_match else chosen_run(results, run_id)
    records, problems = run.load()
    settings_by_cell = {record.cell_id: record.settings for record in records}
    if name_match and name_match[1] not in settings_by_cell:
        reasons = [f": {problem.reason}" for problem in problems if problem.path.name == path.name] or [
            " in the folder of a run"
        ]
        raise UsageError(f"RECORD: {path} is not a record{reasons[0]}")
    cell = name_match[1] if name_match else cells.one_of(name, settings_by_cell, f"run {run.run_id}")
    attempts = [record for record in latest_attempts(records) if record.cell_id == cell]
    if attempts[0].settings.workload.startswith(PREFIX):
        command = f"runner task {attempts[0].settings.workload.removeprefix(PREFIX)}"
        raise UsageError(
            f"RECORD: {cell} is an external command, whose program is in no record; measure it again with: {command}"
        )
    if all(record.status is not Status.OK for record in attempts):
        reason_text = f"ended ok ({attempts[0].status}: {attempts[0].reason}): there is no figure to reproduce"
        raise UsageError(f"RECORD: no process of {cell} in {run.run_id} {reason_text}")
    return ReproducedCell(run, attempts)


def measured_again(
    reproduced_cell: ReproducedCell, cell: Cell, env: Path | None, request: RunRequest, display: Display
) -> Finished:
    """Measure a stored cell in an environment, by default in one with its versions. Raises `CannotRebuild`."""
    if env is not None:
        arm = _arm_of(env, "--env")
    elif reproduced_cell.image is None:
        arm = rebuilt_arm(reproduced_cell.records[0].versions, request, cell, display)
    else:
        arm = _same_image(reproduced_cell, request, cell)
    about = {**origin("runner reproduce", cell.settings), "reproduces": reproduced_cell.run.run_id}
    return finished(measured(request, Experiment([cell], about, {"": arm}), display))


def _arm_of(folder: Path, flag: str) -> ArmRequest:
    chosen_interpreter = interpreter.of_environment(folder, flag)
    return ArmRequest(chosen_interpreter.python, None, chosen_interpreter.versions())


def rebuilt_arm(stored_versions: Mapping[str, str], request: RunRequest, cell: Cell, display: Display) -> ArmRequest:
    """Return this Python if it has these versions, or else an environment made with them. Raises `CannotRebuild`."""
    if not request.executors.contract.local_software:
        raise CannotRebuild(f"--executor {request.executors.entry.name}: the record was not measured in a container")
    software = request.executors.software([cell])
    # A record names a backend by its module: tensorflow, also if the installed distribution is tensorflow-cpu.
    modules = {
        name: software[backend.cpu_package] for name, backend in TABLE.items() if backend.cpu_package in software
    }
    installed_here = installable({"python": platform.python_version(), **modules, **software})
    if all(installed_here.get(name) == version for name, version in installable(stored_versions).items()):
        return own_arm(request, [cell])
    if catalog.needs_keras_hub(cell.settings.workload) and KERAS_HUB not in stored_versions:
        raise CannotRebuild(
            f"the record does not state the version of KerasHub, which {cell.settings.workload} needs; "
            "name an environment with --env"
        )
    return _arm_of(environment(recipe_of(stored_versions), cache_folder(), display.say), "RECORD")


def _same_image(reproduced_cell: ReproducedCell, request: RunRequest, cell: Cell) -> ArmRequest:
    """Return the arm of the stored image. Raises `CannotRebuild` if the name now stands for another one."""
    arm = own_arm(request, [cell])
    if reproduced_cell.image not in arm.versions.values():
        images_text = (
            ", ".join(f"{name} is {digest}" for name, digest in arm.versions.items()) or "there is no image here"
        )
        raise CannotRebuild(
            f"the record was measured in the image {reproduced_cell.image}, but {images_text}; if the first one is "
            f"still here, name it: docker tag {reproduced_cell.image} reproduced:SERVICE, and add --images reproduced"
        )
    return arm


def judged(reproduced_cell: ReproducedCell, latest: Sequence[Record], tolerance: float) -> Reproduction:
    """Return the verdict on the new records, with the spread between the stored sessions of the cell."""
    spread = spread_stored(
        [reproduced_cell.run.folder.parent], [reproduced_cell.run.run_id], {reproduced_cell.records[0].cell_id}
    )
    return judge(reproduced_cell.records, latest, spread([*reproduced_cell.records, *latest]), tolerance)
