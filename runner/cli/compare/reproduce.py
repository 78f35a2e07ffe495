"""Measure a stored cell again, with the versions and settings of its record, and compare it with the stored figure.

    runner reproduce results/RUN/records/0a1b2c3d4e5f6071.0.0.json
    runner reproduce jax:lstm --run RUN

reproduced (exit 0): the interval of new / stored lies within the tolerance. differs (exit 4): it lies outside of it.
undecided (exit 5): otherwise. Exit 1: nothing was measured. Exit 3: it cannot be rebuilt; the message says why.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from keras_matrix.analysis.comparison.primary_metric import figure_of
from keras_matrix.analysis.regression.reproduction import Verdict, judge
from keras_matrix.records.backends import TABLE
from keras_matrix.records.codec import to_json
from keras_matrix.records.packages import KERAS_HUB
from keras_matrix.records.schema import Record, Status
from keras_matrix.records.store import RECORD_NAME, Run, latest_attempts
from keras_matrix.records.task import PREFIX
from keras_matrix.runner.cli.measure.run import Finished, finished
from keras_matrix.runner.cli.options import add_measuring_options, check_range, run_request, share
from keras_matrix.runner.cli.render.display import TerminalDisplay
from keras_matrix.runner.cli.render.format import document
from keras_matrix.runner.cli.render.reproduction_text import lines
from keras_matrix.runner.environments.rebuilt import CannotRebuild, cache_folder, environment, installable, recipe_of
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.executors import registry
from keras_matrix.runner.executors.process import interpreter
from keras_matrix.runner.matrix import catalog
from keras_matrix.runner.matrix.reader import Cell
from keras_matrix.runner.measure.experiment import Experiment, measured, own_arm
from keras_matrix.runner.measure.request import RunRequest
from keras_matrix.runner.plan.session import ArmRequest
from keras_matrix.runner.service import cells
from keras_matrix.runner.service.histories import spread_stored
from keras_matrix.runner.service.named_cells import stored_cell
from keras_matrix.runner.service.stored import chosen_run

EXIT_CODES = {Verdict.REPRODUCED: 0, Verdict.NOT_MEASURED: 1, Verdict.DIFFERS: 4, Verdict.UNDECIDED: 5}
LEAST_REPEATS, MOST_REPEATS = 5, 1000  # by default at least as many as an interval over blocks needs


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    parser.add_argument("record", metavar="RECORD", help=f"the file of a record, or {cells.HELP}")
    parser.add_argument("--run", metavar="RUN", help="which run has the cell; default: the newest")
    parser.add_argument(
        "--env", type=Path, metavar="FOLDER", help="virtual environment to measure in; default: one with its versions"
    )
    parser.add_argument("--matrix", type=Path, metavar="FILE", help="its folder contains the user's own workloads")
    parser.add_argument("--repeats", type=int, metavar="N", help="processes; default: as stored, at least 5")
    parser.add_argument(
        "--threshold", type=share, default=0.05, metavar="SHARE", help="difference that is tolerated (default: 0.05)"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("reproduced"), metavar="FOLDER", help="new results; default: reproduced"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    add_measuring_options(parser)
    parser.set_defaults(executor=None)


def run(args: argparse.Namespace) -> int:
    """Measure the cell again and compare. Returns the exit code."""
    if args.repeats is not None:
        check_range("--repeats", args.repeats, 1, MOST_REPEATS)
    stored = _stored(args)
    args.executor = args.executor or ("docker" if stored.image else registry.DEFAULT)
    args.start = args.start or stored.start
    request = replace(run_request(args), results=args.out)
    display = TerminalDisplay(args.json)
    done = _measured(stored, request, args, display)
    spread = spread_stored([stored.run.folder.parent], [stored.run.run_id], {stored.records[0].cell_id})
    found = judge(stored.records, done.latest, spread([*stored.records, *done.latest]), args.threshold)
    if args.json:
        fields = {"cell_id": stored.records[0].cell_id, "stored": stored.run.run_id, "new": done.run.run_id}
        print(document(fields | to_json(found)))
    else:
        print("\n".join(lines(found, figure_of(stored.records), stored.records, done.latest)))
    return EXIT_CODES[found.verdict]


@dataclass(frozen=True, slots=True)
class Stored:
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


def _stored(args: argparse.Namespace) -> Stored:
    """Return the stored cell that the arguments name. Raises `UsageError`."""
    path = Path(args.record)
    named = RECORD_NAME.fullmatch(path.name)
    if path.suffix == ".json" and not path.is_file():
        raise UsageError(f"RECORD: {path} does not exist")
    if not named and path.suffix == ".json":
        raise UsageError(f"RECORD: {path} is not a record, whose file is named CELL.REPEAT.ATTEMPT.json")
    run = Run(path.resolve().parent.parent) if named else chosen_run(args.results, args.run)
    records, problems = run.load()
    there = {record.cell_id: record.settings for record in records}
    if named and named[1] not in there:
        reasons = [f": {one.reason}" for one in problems if one.path.name == path.name] or [" in the folder of a run"]
        raise UsageError(f"RECORD: {path} is not a record{reasons[0]}")
    name = named[1] if named else cells.one_of(args.record, there, f"run {run.run_id}")
    found = [record for record in latest_attempts(records) if record.cell_id == name]
    if found[0].settings.workload.startswith(PREFIX):
        command = f"runner task {found[0].settings.workload.removeprefix(PREFIX)}"
        raise UsageError(f"RECORD: an external command, which no record contains; measure it again with: {command}")
    if all(record.status is not Status.OK for record in found):
        why = f"ended ok ({found[0].status}: {found[0].reason}): there is no figure to reproduce"
        raise UsageError(f"RECORD: no process of {name} in {run.run_id} {why}")
    return Stored(run, found)


def _measured(stored: Stored, request: RunRequest, args: argparse.Namespace, display: TerminalDisplay) -> Finished:
    cell = stored.cell(args.repeats)
    if args.env is not None:
        arm = _arm_of(args.env, "--env")
    elif stored.image is None:
        arm = rebuilt_arm(stored.records[0].versions, request, cell, display)
    else:
        arm = _same_image(stored, request, cell)
    text = json.dumps(to_json(cell.settings), indent=1)
    about = {"matrix_path": "runner reproduce", "matrix_text": text, "reproduces": stored.run.run_id}
    return finished(measured(request, Experiment([cell], about, {"": arm}), display))


def _arm_of(folder: Path, flag: str) -> ArmRequest:
    found = interpreter.of_environment(folder, flag)
    return ArmRequest(found.python, None, found.versions())


def rebuilt_arm(then: Mapping[str, str], request: RunRequest, cell: Cell, display: TerminalDisplay) -> ArmRequest:
    """Return this Python if it has these versions, or else an environment made with them. Raises `CannotRebuild`."""
    if not request.executors.contract.local_software:
        raise CannotRebuild(f"--executor {request.executors.entry.name}: the record was not measured in a container")
    software = request.executors.software([cell])
    # A record names a backend by its module: tensorflow, also if the installed distribution is tensorflow-cpu.
    modules = {name: software[one.cpu_package] for name, one in TABLE.items() if one.cpu_package in software}
    here = installable({"python": platform.python_version(), **modules, **software})
    if all(here.get(name) == version for name, version in installable(then).items()):
        return own_arm(request, [cell])
    if catalog.needs_keras_hub(cell.settings.workload) and KERAS_HUB not in then:
        raise CannotRebuild(
            f"the record does not state the version of KerasHub, which {cell.settings.workload} needs; "
            "name an environment with --env"
        )
    return _arm_of(environment(recipe_of(then), cache_folder(), display.say), "RECORD")


def _same_image(stored: Stored, request: RunRequest, cell: Cell) -> ArmRequest:
    """Return the arm of the stored image. Raises `CannotRebuild` if the name now stands for another one."""
    arm = own_arm(request, [cell])
    if stored.image not in arm.versions.values():
        now = ", ".join(f"{name} is {digest}" for name, digest in arm.versions.items()) or "there is no image here"
        raise CannotRebuild(
            f"the record was measured in the image {stored.image}, but {now}; if you have it, name it: "
            f"docker tag {stored.image} reproduced:SERVICE, and add --images reproduced"
        )
    return arm
