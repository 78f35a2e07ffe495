"""Reads a matrix file strictly and multiplies it out into cells.

Promise: `load` reads one file, `expand` is pure. Every point of the matrix becomes exactly one cell, in file order with
the backend varying fastest; a duplicate point is refused. Cell identities are those of `records.identity`.

An entry is the product of its axes and its backends. `exclude` leaves out the points that have all the values it lists;
`include` then adds the entry again with some keys replaced (the other axes are multiplied out again).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import product
from math import prod
from operator import itemgetter
from pathlib import Path
from typing import Any

from keras_matrix.records import replicas as replica_rules
from keras_matrix.records.fc import rules, spec
from keras_matrix.records.identity import DEFAULTS, LATER, PARAMS, parameter_key
from keras_matrix.records.identity import cell_id as identity
from keras_matrix.records.left_out import LeftOut
from keras_matrix.records.settings import Scalar, Settings
from keras_matrix.records.task import Task
from keras_matrix.records.text import escaped
from keras_matrix.records.traces.request import Trace, untraceable
from keras_matrix.runner.errors import MatrixError
from keras_matrix.runner.matrix import catalog as catalogs
from keras_matrix.runner.matrix import instrument_keys, strict_yaml
from keras_matrix.runner.matrix.catalog import Catalog
from keras_matrix.runner.matrix.entries import read
from keras_matrix.runner.matrix.entry import ANYWHERE, Entry, PlacementKeys, placement_of
from keras_matrix.runner.matrix.grammar import LARGEST, SETTINGS, TO_BE_FOUND, Axes
from keras_matrix.runner.matrix.overrides import Overrides, overridden

MAX_CELLS = 100_000
NO_FILE = "give the path with --matrix, or write a first matrix with: keras-matrix init"
FIRST_LOOK = 5  # the fewest repeats that give an interval
MAX_REPEATS = 1_000_000  # of all cells together; a planned repeat takes about 50 bytes


@dataclass(frozen=True, slots=True)
class Cell:
    """A point of the matrix; `line` is the line of its entry.

    `precision_target` is None for a fixed number of repeats; else the first look is after `repeats`. `task` is the
    external command that runs instead of a workload; `trace` is what its first process traces. `steps_held` is
    passed to `runner.cell.job.Job`. Cells with the same `together` are measured interleaved, as one comparison with the
    same number of steps; "" for the usual comparison, of cells that differ in their backend only. Those of the same
    `race` are interleaved, too, and each usual comparison of them has its own number of steps. `change` names
    what was changed in it, for progress. `placement` is where it may be measured.
    """

    settings: Settings
    cell_id: str
    repeats: int
    timeout_s: float
    line: int | None
    precision_target: float | None = None
    task: Task | None = None
    trace: Trace | None = None
    steps_held: int = 0
    together: str = ""
    race: str = ""
    change: str = ""
    placement: PlacementKeys = ANYWHERE

    @property
    def auto(self) -> bool:
        """Whether repeats are added until the intervals are narrow enough."""
        return self.precision_target is not None

    @property
    def uses_largest_batch(self) -> bool:
        """Whether its batch size is the largest that fits, which is searched before the cell is measured."""
        return self.settings.batch_size == TO_BE_FOUND


@dataclass(frozen=True, slots=True)
class Matrix:
    """A checked matrix file. `name` is its path as given; `left_out` lists what a service does not run.

    `environments` has the path of the Python environment of each backend, "" for the others, if the file names any.
    """

    name: str
    entries: tuple[Entry, ...]
    catalog: Catalog
    budget_s: float | None = None
    left_out: tuple[LeftOut, ...] = ()
    environments: Mapping[str, str] = field(default_factory=dict)


def load(path: Path, catalog: Catalog | None = None) -> Matrix:
    """Read a matrix file. Raises `MatrixError` with every problem in it."""
    return parse(path, _bytes(path), catalog)


def text_of(path: Path) -> str:
    """Return the text of a matrix file. Raises `MatrixError`."""
    return _bytes(path).decode().replace("\r\n", "\n")


def parse(path: Path, text: bytes, catalog: Catalog | None = None) -> Matrix:
    """Check the text of a matrix file; `path` need not exist. Raises `MatrixError` as `load` does."""
    used_catalog = catalog or catalogs.load()
    reading = read(strict_yaml.read(text), used_catalog)
    if reading.problems:
        raise MatrixError([problem.text_in(_name(path)) for problem in reading.problems])
    budget_s = reading.file_values.get("budget")
    budget_s = None if budget_s is None else float(budget_s)
    return Matrix(_name(path), reading.entries, used_catalog, budget_s, environments=reading.environments)


def expand(matrix: Matrix, overrides: Overrides | None = None, limit: int = MAX_CELLS) -> list[Cell]:
    """Return the cells of a matrix that the overrides select.

    Points of the workload `fc` that are the same work in its modes become one cell (`records.fc.rules.normalised`).

    Raises `UsageError` if an override is wrong or selects nothing, `MatrixError` if the matrix has no cell, duplicates,
    more than `limit` cells, or more than `MAX_REPEATS` repeats (both counted before `exclude` is applied).
    """
    effective = overrides or Overrides()
    narrowed = replace(matrix, entries=tuple(overridden(matrix.entries, effective)))
    return expand_entries(narrowed, limit, merged=bool(effective.assignments))


def expand_entries(matrix: Matrix, limit: int = MAX_CELLS, *, merged: bool = False) -> list[Cell]:
    """Return the cells of a matrix, as `expand` does; `merged` allows duplicate points, which become one cell."""
    _check_count(matrix, limit)
    cells: dict[str, Cell] = {}
    repetition_texts: dict[tuple[int | None, str], str] = {}
    impossible: list[str] = []
    normalised: set[str] = set()
    for entry in matrix.entries:
        points = _normalised(matrix, entry, normalised, impossible) if _is_divided(entry) else _cells(entry)
        for cell in points:
            first_cell = cells.setdefault(cell.cell_id, cell)
            if first_cell is not cell and not merged and cell.cell_id not in normalised:
                batch_text = LARGEST if cell.uses_largest_batch else cell.settings.batch_size
                label = f"{cell.settings.workload} on {cell.settings.backend} at batch {batch_text}"
                text = f"must not define a cell twice, got {label} of line {first_cell.line} again"
                repetition_texts.setdefault(
                    (first_cell.line, entry.where), f"{matrix.name}:{cell.line}: {entry.where}: {text}"
                )
        if len(repetition_texts) >= strict_yaml.MAX_PROBLEMS:
            break
    if impossible or repetition_texts:
        raise MatrixError(list(dict.fromkeys([*impossible, *repetition_texts.values()])))
    if not cells:
        raise MatrixError(
            [f"{matrix.name}:{e.line}: {e.where}: exclude leaves no cell; narrow it" for e in matrix.entries]
        )
    return list(cells.values())


def _is_divided(entry: Entry) -> bool:
    """Return whether the work of an entry's cells may be divided, among the workers of `fc` or among devices."""
    return entry.workload.name == spec.WORKLOAD or any(
        entry.axes.get(key, (DEFAULTS[key],)) != (DEFAULTS[key],) for key in ("devices", "distribution")
    )


def _normalised(matrix: Matrix, entry: Entry, changed_ids: set[str], impossible: list[str]) -> Iterator[Cell]:
    """Yield the cells of an entry without parameters that have no effect on them; add those that differ by it to
    `changed_ids`, and add what is impossible."""
    is_fc = entry.workload.name == spec.WORKLOAD
    for point in _cells(entry):
        settings = rules.normalised_settings(point.settings) if is_fc else point.settings
        settings = replica_rules.normalised(settings)
        is_changed = settings is not point.settings
        cell = replace(point, settings=settings, cell_id=identity(settings)) if is_changed else point
        if len(impossible) < strict_yaml.MAX_PROBLEMS:
            problems = rules.settings_problems(point.settings) if is_fc else []
            problems += replica_rules.problems(point.settings)
            impossible += [f"{matrix.name}:{point.line}: {entry.where}: {problem}" for problem in problems]
        if is_changed:
            changed_ids.add(cell.cell_id)
        yield cell


def makes_cells(entry: Entry) -> bool:
    """Return whether the excludes of an entry leave a point; assumed for an entry with too many points to check."""
    return not entry.excludes or _points(entry) > MAX_CELLS or next(_cells(entry), None) is not None


def _points(entry: Entry) -> int:
    """Return the number of points of an entry, before its excludes."""
    return len(entry.backends) * prod(map(len, (*entry.axes.values(), *entry.params.values())))


# Reading.


def _bytes(path: Path) -> bytes:
    if not path.is_file():
        problem = "is not a regular file" if path.exists() else f"no such file; {NO_FILE}"
        raise MatrixError([f"{_name(path)}: {problem}"])
    try:
        with path.open("rb") as file:
            return file.read(strict_yaml.MAX_BYTES + 1)
    except OSError as error:
        raise MatrixError([f"{_name(path)}: cannot be read ({error.strerror})"]) from error


def _name(path: Path) -> str:
    return escaped(str(path), most=None)


# Expansion.


def _check_count(matrix: Matrix, limit: int) -> None:
    counts = [_points(entry) for entry in matrix.entries]
    if (total := sum(counts)) > limit:
        entry = matrix.entries[counts.index(max(counts))]
        most, all_cells = (str(number) if number < 10**15 else "more than 10^15" for number in (max(counts), total))
        params = {parameter_key(name): values for name, values in entry.params.items()}
        axes = {**entry.axes, **params, "backends": entry.backends}
        longest = max(axes, key=lambda key: len(axes[key]))
        text = f"must define at most {limit} cells in total, got {most} of {all_cells} here"
        advice = f"; its longest axis is {longest} with {len(axes[longest])} values"
        raise MatrixError([f"{matrix.name}:{entry.line}: {entry.where}: {text}{advice}"])
    repeats = [_repeats(e)[0] * count for e, count in zip(matrix.entries, counts, strict=True)]
    if (total := sum(repeats)) > MAX_REPEATS:
        entry = matrix.entries[repeats.index(max(repeats))]
        text = f"must define at most {MAX_REPEATS} repeats in total, got {max(repeats)} of {total} here"
        raise MatrixError([f"{matrix.name}:{entry.line}: {entry.where}: {text}; lower repeats or shorten an axis"])


def _repeats(entry: Entry) -> tuple[int, float | None]:
    """Return the repeats to plan, and for "auto" the precision to reach."""
    repeats = entry.limits["repeats"]
    return (FIRST_LOOK, float(entry.limits["precision_target"])) if repeats == "auto" else (int(repeats), None)


@dataclass(frozen=True, slots=True)
class _Axis:
    """A field of `Settings` with its values and their canonical JSON texts."""

    name: str
    values: list[Any]
    texts: list[str]

    def matching(self, exclude: Axes) -> set[int]:
        """Return the indices of the values that match the exclude in this field."""
        excluded_values = {
            key: {repr(_setting(key, v)) for v in allowed_values} for key, allowed_values in exclude.items()
        }
        if self.name == "params":
            parameter_values = [
                (key.removeprefix(PARAMS), ok)
                for key, ok in excluded_values.items()
                if key not in (*SETTINGS, "backend")
            ]
            return {i for i, v in enumerate(self.values) if all(_shown(v, name) in ok for name, ok in parameter_values)}
        allowed_values = excluded_values.get(self.name)
        return {i for i, value in enumerate(self.values) if allowed_values is None or repr(value) in allowed_values}


def _cells(entry: Entry) -> Iterator[Cell]:
    """Yield the cells of an entry; only the axes that vary are evaluated for each cell."""
    axes = _axes(entry)
    varying = [axis for axis in axes if len(axis.values) > 1]
    excludes = _excludes(entry, axes, varying)
    if excludes is None:
        return
    names = [axis.name for axis in axes]
    arguments_of = itemgetter(*(names.index(field.name) for field in fields(Settings)))
    write = _writer(axes, varying)
    repeats, precision_target = _repeats(entry)
    limits = repeats, float(entry.limits["timeout_s"]), entry.line, precision_target
    placement = placement_of(entry.limits)
    points = zip(
        map(arguments_of, product(*(axis.values for axis in axes))),
        product(*(axis.texts for axis in varying)),
        product(*(range(len(axis.values)) for axis in varying)),
        strict=True,
    )
    for arguments, texts, numbers in points:
        if excludes and any(all(numbers[i] in hits for i, hits in exclude) for exclude in excludes):
            continue
        cell_id = hashlib.sha256(write(texts)).hexdigest()[:16]
        settings = Settings(*arguments)
        together = instrument_keys.together(settings) if entry.stalls else ""
        task = entry.task.of(settings) if entry.task else None
        has_trace = entry.trace and not untraceable(settings.implementation, settings.call, settings.backend)
        trace = entry.trace if has_trace else None
        yield Cell(settings, cell_id, *limits, task, trace, together=together, placement=placement)


def _axes(entry: Entry) -> list[_Axis]:
    """Return an axis for each field of `Settings`; the last one, the backend, varies fastest."""
    values_by_axis = {"workload": (entry.workload.name,), "set_by_matrix": (entry.set_by_matrix,), **entry.axes}
    axes = [
        _Axis(name, [_setting(name, v) for v in values], [_text(name, v) for v in values])
        for name, values in values_by_axis.items()
    ]
    ordered = sorted(entry.params)
    points = [dict(zip(ordered, point, strict=True)) for point in product(*(entry.params[name] for name in ordered))]
    if entry.workload.name == spec.WORKLOAD:
        points = [rules.stored_params(point) for point in points]
    texts = ["{" + ",".join(f"{_canonical(k)}:{_canonical(v)}" for k, v in point.items()) + "}" for point in points]
    backend = _Axis("backend", list(entry.backends), [_canonical(b) for b in entry.backends])
    return [*axes, _Axis("params", points, texts), backend]


def _shown(params: dict[str, Scalar], key: str) -> str:
    """Return a parameter's value as text; the settings of the workload `fc` omit later ones at their default."""
    return repr(params[key] if key in params else rules.DEFAULTS[key])


def _setting(name: str, value: Scalar) -> Scalar:
    """Return a value as it is stored in `Settings`."""
    return TO_BE_FOUND if name == "batch_size" and value == LARGEST else value


def _excludes(entry: Entry, axes: list[_Axis], varying: list[_Axis]) -> list[list[tuple[int, set[int]]]] | None:
    """Return each exclude as tests on the varying axes, or None if one of them excludes every point."""
    tests_by_exclude = []
    for exclude in entry.excludes:
        hits = {axis.name: axis.matching(exclude) for axis in axes}
        if not all(hits.values()):
            continue
        tests = [(i, hits[axis.name]) for i, axis in enumerate(varying) if len(hits[axis.name]) < len(axis.values)]
        if not tests:
            return None
        tests_by_exclude.append(tests)
    return tests_by_exclude


def _writer(axes: list[_Axis], varying: list[_Axis]) -> Any:
    """Return a function from the texts of the varying axes to the canonical JSON of the settings, as bytes."""
    names = [axis.name for axis in varying]
    pieces = []
    for axis in sorted(axes, key=lambda axis: axis.name):
        text = "%s" if axis.name in names else axis.texts[0].replace("%", "%%")
        pieces.append(text if axis.name in LATER else f",{_canonical(axis.name)}:{text}")
    template = "{" + "".join(pieces).removeprefix(",") + "}"
    places = sorted(range(len(names)), key=names.__getitem__)
    if not places:
        return lambda _: (template % ()).encode()
    pick = itemgetter(*places)
    return lambda texts: (template % pick(texts)).encode()


def _text(name: str, value: Scalar) -> str:
    """Return a setting's value as canonical JSON; for a later setting with comma and name, or empty at its default."""
    if name not in LATER:
        return _canonical(value)
    return "" if value == DEFAULTS[name] else f",{_canonical(name)}:{_canonical(value)}"


def _canonical(value: Scalar) -> str:
    return json.dumps(value, allow_nan=False, ensure_ascii=False)
