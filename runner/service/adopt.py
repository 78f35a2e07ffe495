"""Finds the Keras programs of somebody's project, and writes a first matrix that measures them. Runs none of it.

The project's sources are read as texts (`analysis.programs`); nothing of it is imported. Nothing is overwritten. Left
out are hidden files, environments of Python, and what a cell's copy of the project leaves out. An environment directly
in the project's folder becomes the cells', if they can run there; it is not started for that.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from keras_matrix.analysis.program_names import Project
from keras_matrix.analysis.programs import FIT, LOOP, STEP, STEPS, KerasProgram, program_of
from keras_matrix.records import files
from keras_matrix.records.backends import TRAINING_BACKENDS
from keras_matrix.records.codec import CodecError
from keras_matrix.records.text import plural, printable
from keras_matrix.runner.errors import StoreError, UsageError
from keras_matrix.runner.executors.process.interpreter import StoredEnvironment, read_environment
from keras_matrix.runner.matrix.grammar import MATRIX, script_problem
from keras_matrix.runner.measure.request import project_of

SOURCE_LIMIT_BYTES = 2 << 20
MOST_SOURCES = 5_000
LEFT_OUT = ("__pycache__", "node_modules", "site-packages")
OF_OTHERS = ("pyvenv.cfg", "run.json")  # they are in an environment of Python, and in the folder of a run
TRAINS = (FIT, STEPS, STEP)
USUAL_NAMES = (".venv", "venv", "env")  # of a project's environment, the likeliest first
PLAIN_NAME = re.compile(r"[\w.-]{1,100}", re.ASCII)
HEAD = """\
# The Keras programs of this folder, as they are: docs/howto/measure-your-program.md says what is measured of each.
#
#   runner plan --matrix {matrix}     lists the cells, without measuring
#   runner --matrix {matrix}          measures them, prints the verdicts and writes results/latest/report.html
version: 1
{environment}
# Five processes are the fewest that give each comparison an interval. A process trains two epochs and discards the
# first. It is ended after timeout_s, which must be more than the program needs until its second epoch has ended.
defaults:
  repeats: 5
  epochs: 2
  timeout_s: 300

backends: [{backends}]

cells:
"""


@dataclass(frozen=True, slots=True)
class Offered:
    """The backends on which cells can run, and where these are installed."""

    backends: tuple[str, ...]
    place: str = "here"


@dataclass(frozen=True, slots=True)
class Adopted:
    """The programs of a project, and its own environment, if it has one.

    `why_not` has the reason for each program that the matrix does not measure.
    """

    folder: Path
    programs: tuple[KerasProgram, ...]
    why_not: dict[str, str]
    unread: dict[str, str]
    sources: int
    backends: tuple[str, ...]
    environment: StoredEnvironment | None = None
    matrix_text: str | None = None

    @property
    def matrix(self) -> Path:
        """Where its first matrix is, or will be."""
        return self.folder / MATRIX


def read_project(path: Path, arguments: Sequence[str], installed: Sequence[str]) -> Adopted:
    """Return the programs of a folder, or the one program at a path with its arguments.

    The matrix is for the backends of the project's environment, else for those `installed` here, without any for all.
    Raises `UsageError` without a program of Keras.
    """
    if path.is_file():
        file = path.resolve()
        folder = project_of(file)
    elif path.is_dir() and not arguments:
        folder = path.resolve()
    elif path.is_dir():
        advice = "name the program, and put options of adopt before the path"
        raise UsageError(f"adopt: arguments belong to one program, got the folder {path}; {advice}")
    else:
        raise UsageError(f"adopt: {path}: must be a project's folder or a program, such as train.py; it does not exist")
    sources, unread = _sources(folder)
    project = Project(sources)
    names = [str(file.relative_to(folder))] if path.is_file() else sorted(sources)
    programs = tuple(program for name in names if (program := program_of(project, name)) is not None)
    unread |= project.unread
    if not programs:
        reason = f"; {names[0]}: {unread[names[0]]}" if len(names) == 1 and names[0] in unread else ""
        raise UsageError(
            f"adopt: {path}: no program of Keras found in {plural(len(names), 'file')}: none, followed from its first "
            f"line, reaches a call of fit, evaluate or predict, or a training step of its own{reason}"
        )
    environment = _environment(folder)
    is_used = environment is not None and not environment.problem
    offered = Offered(_training(installed))
    if environment is not None and is_used:
        offered = Offered(_training(environment.backends), f"in {environment.name}")
    reasons = ((program.path, _why_not(program, arguments, offered, path)) for program in programs)
    why_not = {name: reason for name, reason in reasons if reason}
    backends = _backends(programs, why_not, offered)
    adopted = Adopted(folder, programs, why_not, unread, len(sources), backends, environment)
    text = _matrix_text(adopted, arguments) if len(why_not) < len(programs) else None
    return replace(adopted, matrix_text=text)


def write(adopted: Adopted) -> None:
    """Write the matrix. Raises `UsageError` if there is one, `StoreError` if it cannot be written."""
    path = adopted.matrix
    if path.exists() or path.is_symlink():
        raise UsageError(f"adopt: {path}: already exists and is never replaced; move it away, or only list with --list")
    assert adopted.matrix_text is not None
    try:
        files.publish(path, adopted.matrix_text)
    except OSError as error:
        raise StoreError(f"adopt: {path}: {error.strerror or error}") from error


def _environment(folder: Path) -> StoredEnvironment | None:
    """Return the environment of Python in a project's folder, at best one that its cells can run in."""
    names = list(USUAL_NAMES)
    with suppress(OSError), os.scandir(folder) as entries:
        names += sorted(entry.name for entry in entries if entry.name not in USUAL_NAMES and entry.is_dir())
    readings = [read_environment(folder / name) for name in names if PLAIN_NAME.fullmatch(name)]
    environments = [reading for reading in readings if reading is not None]
    return next((reading for reading in environments if not reading.problem), next(iter(environments), None))


def _sources(folder: Path) -> tuple[dict[str, bytes], dict[str, str]]:
    """Return the sources of a project by their paths in it, and the reasons for those that are not read."""
    sources, unread = dict[str, bytes](), dict[str, str]()
    for path in _python_files(folder):
        name = str(path.relative_to(folder))
        if len(sources) == MOST_SOURCES:
            raise UsageError(f"adopt: {folder}: has more than {MOST_SOURCES} files of Python; name a folder in it")
        try:
            sources[name] = files.read_plain(os.path.realpath(path), SOURCE_LIMIT_BYTES)
        except (CodecError, OSError) as error:
            unread[name] = str(getattr(error, "strerror", None) or error)
    return sources, unread


def _python_files(folder: Path) -> Iterator[Path]:
    waiting = [folder]
    while waiting:
        entries: list[os.DirEntry[str]] = []
        with suppress(OSError):
            entries = sorted(os.scandir(waiting.pop()), key=lambda entry: entry.name)
        if any(entry.name in OF_OTHERS for entry in entries):
            continue
        for entry in entries:
            if entry.name.startswith(".") or entry.name in LEFT_OUT:
                continue
            if entry.is_dir(follow_symlinks=False):
                waiting.append(Path(entry.path))
            elif entry.name.endswith(".py"):
                yield Path(entry.path)


def _why_not(program: KerasProgram, arguments: Sequence[str], offered: Offered, path: Path) -> str:
    """Return why a program is not measured as it is, and what to do; empty if it is."""
    if problem := script_problem(program.path):
        return f"its path {problem}; rename it"
    if not program.backends:
        return "no backend of Keras 3 runs it; see what restricts it"
    if not set(program.backends) & set(offered.backends):
        return f"needs {' or '.join(program.backends)}, not installed {offered.place}"
    if program.as_module:
        return f"runs only as a module, by its relative import in {program.as_module}; import by the full name"
    if program.required and not arguments:
        words_text = " ".join(program.required)
        file = path / program.path if path.is_dir() else path
        return f"needs arguments; give them: runner adopt {shlex.quote(str(file))} {words_text}"
    if program.call.kind == LOOP:
        return (
            "has a loop of its own: add `for batch in keras_matrix.steps(dataset):`, or around each step "
            "`with keras_matrix.step():`"
        )
    return ""


def _training(installed: Sequence[str]) -> tuple[str, ...]:
    """Return the installed backends that train, all of those without any: a matrix has one list for its programs."""
    return tuple(name for name in TRAINING_BACKENDS if name in installed) or TRAINING_BACKENDS


def _backends(programs: Sequence[KerasProgram], why_not: dict[str, str], offered: Offered) -> tuple[str, ...]:
    """Return the backends on which at least one measured program runs."""
    used = {name for program in programs if program.path not in why_not for name in program.backends}
    return tuple(name for name in TRAINING_BACKENDS if name in used and name in offered.backends)


def _matrix_text(adopted: Adopted, arguments: Sequence[str]) -> str:
    lines = []
    for program in adopted.programs:
        reason = adopted.why_not.get(program.path)
        if reason:
            lines += [f"  # {printable(program.path, ' ')}: {printable(reason, ' ')}"]
            continue
        workload: dict[str, object] = {"script": program.path} | ({"args": list(arguments)} if arguments else {})
        if program.call.kind not in TRAINS:
            workload["call"] = program.call.kind
        lines += [
            f"  # {program.call.kind}, {printable(str(program.call.place), ' ')}",
            f"  - workload: {json.dumps(workload)}",
        ]
        backends = [name for name in adopted.backends if name in program.backends]
        if tuple(backends) != adopted.backends:
            found = next(found for found in program.restrictions if set(found.backends) & set(adopted.backends))
            reason_text = printable(f"{found.use}, {found.place}", " ")
            lines += [f"    backends: [{', '.join(backends)}]  # {reason_text}"]
    head = HEAD.format(
        matrix=MATRIX, backends=", ".join(adopted.backends), environment=_environment_text(adopted.environment)
    )
    return head + "\n".join(lines) + "\n"


def _environment_text(environment: StoredEnvironment | None) -> str:
    """Return the lines of the matrix about the project's environment."""
    if environment is None:
        return ""
    if environment.problem:
        return (
            f"# {environment.name} {printable(environment.problem, ' ')}: the cells use the runner's own environment.\n"
        )
    return f"python: {json.dumps(environment.name)}  # the project's own environment, in which the cells run\n"
