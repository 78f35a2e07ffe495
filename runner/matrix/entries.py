"""Checks a document by the rules of the grammar, and returns its entries or its problems with their lines.

Promise: pure; one pass finds every problem of the document, and entries are complete: every default is filled in.
Axes are not multiplied out here. A user's own workload is looked up inside its cell, not here.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from keras_matrix.records.backends import BACKENDS, TRAINING_BACKENDS
from keras_matrix.records.identity import PARAMS, parameter_key
from keras_matrix.records.parts import KIND_OF_PART, is_part
from keras_matrix.records.settings import OWN_OPTIONS, SCRIPT, Scalar, call_phase, is_script, program_settings
from keras_matrix.records.text import near
from keras_matrix.records.traces.request import Trace
from keras_matrix.runner.matrix import grammar, instrument_keys, parts
from keras_matrix.runner.matrix.catalog import Catalog, CatalogWorkload, of_packages, user_workload
from keras_matrix.runner.matrix.conflicts import Conflict, conflicts
from keras_matrix.runner.matrix.entry import Entry
from keras_matrix.runner.matrix.grammar import DEFAULTS, LIMITS, SETTINGS, USER_PARAM, Axes, ValueRule
from keras_matrix.runner.matrix.scalars import say
from keras_matrix.runner.matrix.strict_yaml import REFUSED, Document, LineProblem, Path, Stop, note, path_text
from keras_matrix.runner.matrix.value_reader import ValueReader

MAX_EXCLUDES = 100  # each is tried on every point of its entry
_BACKEND = ValueRule(choices=BACKENDS)


@dataclass(frozen=True, slots=True)
class _OwnKeys:
    """The keys that an entry or an include sets itself."""

    backends: tuple[str, ...] | None = None
    axes: Axes = field(default_factory=dict)
    params: Axes = field(default_factory=dict)
    limits: dict[str, Scalar] = field(default_factory=dict)
    trace: Trace | None = None
    stalls: bool | None = None

    def replaced_by(self, other: _OwnKeys) -> _OwnKeys:
        """Return these keys updated with those of `other`."""
        return _OwnKeys(
            self.backends if other.backends is None else other.backends,
            self.axes | other.axes,
            self.params | other.params,
            self.limits | other.limits,
            other.trace or self.trace,
            self.stalls if other.stalls is None else other.stalls,
        )


@dataclass(frozen=True, slots=True)
class Reading:
    """The entries of a document, its values that apply to the full file, and its problems."""

    entries: tuple[Entry, ...]
    file_values: dict[str, Scalar]
    problems: list[LineProblem]
    environments: dict[str, str] = field(default_factory=dict)


def read(document: Document, catalog: Catalog) -> Reading:
    """Return the entries and all problems of a document, including those found by `strict_yaml`."""
    reader = EntryReader(document, catalog)
    entries: list[Entry] = []
    if document.value is not REFUSED:
        with suppress(Stop):
            entries = reader.top(document.value)
    problems = sorted(reader.problems, key=lambda problem: problem.line)
    return Reading(tuple(entries), reader.file_values, problems, reader.environments)


def workload_named(name: str, catalog: Catalog) -> CatalogWorkload | str:
    """Return the workload with this name, or what is wrong with the name."""
    if name in catalog.workloads:
        return catalog.workloads[name]
    if name in parts.NAMED:
        return parts.part_workload(name)
    problem = grammar.workload_name_problem(name)
    if problem is None:
        return user_workload(name)
    brought = of_packages(catalog.workloads)
    for package_workload in brought:
        if package_workload.name == name:
            return package_workload.problem or user_workload(package_workload.function)
    return problem + near(
        name, [*catalog.workloads, *KIND_OF_PART.values(), *(package_workload.name for package_workload in brought)]
    )


class EntryReader(ValueReader):
    """Walks a document once, collecting problems."""

    def __init__(self, document: Document, catalog: Catalog) -> None:
        super().__init__(document)
        self.catalog = catalog
        self.trace: Trace | None = None
        self.backends: tuple[str, ...] = ()
        self.file_values: dict[str, Scalar] = {}
        self.environments: dict[str, str] = {}

    # The document, from the top down.

    def top(self, value: object) -> list[Entry]:
        if not isinstance(value, dict):
            self.refuse((), f"must be a mapping with {', '.join(grammar.TOP_KEYS)}, got {say(value)}")
            return []
        members = self.mapping((), value, grammar.TOP_KEYS)
        self.version(members)
        self.read_defaults(members.get("defaults", {}))
        self.file_values = self.scalars((), members, grammar.FILE_RULES)
        self.read_environments(members.get("python", {}))
        if "backends" in value:
            self.backends = self.names(("backends",), members.get("backends", REFUSED)) or BACKENDS
        elif "cells" in value or "tasks" not in value:
            self.refuse((), f"backends is missing; write for example backends: [{', '.join(TRAINING_BACKENDS)}]")
        entries = self.cells(value, members.get("cells", REFUSED))
        if "tasks" not in members:
            return entries
        from keras_matrix.runner.matrix.task_reader import read_tasks  # only a matrix with external commands needs it

        return [*entries, *read_tasks(self, members["tasks"])]

    def version(self, members: dict[str, Any]) -> None:
        if "version" not in members:
            self.refuse((), f"version is missing; write version: {grammar.VERSION}")
        elif (version := members["version"]) is not REFUSED and (
            type(version) is not int or version != grammar.VERSION
        ):
            self.refuse(("version",), f"must be {grammar.VERSION}, got {say(version)}")

    def read_defaults(self, value: object) -> None:
        for key, item in self.mapping(("defaults",), value, (*DEFAULTS, instrument_keys.TRACE)).items():
            if key == instrument_keys.TRACE:
                self.trace = instrument_keys.read_trace(self, ("defaults", key), item)
            elif isinstance(item, list) and DEFAULTS[key].kind != "gpus":
                self.refuse(("defaults", key), f"must be one value (an axis belongs in cells), got {say(item)}")
            elif (checked := self.scalar(("defaults", key), DEFAULTS[key], item)) is not None:
                self.defaults[key] = checked

    def read_environments(self, value: object) -> None:
        """Read the environments of the cells: one path, or one for each backend."""
        if isinstance(value, str):
            value = {grammar.ANY_BACKEND: value}
            allowed: tuple[str, ...] = (grammar.ANY_BACKEND,)
        else:
            allowed = BACKENDS
        for backend, path in self.mapping(("python",), value, allowed).items():
            if isinstance(path, str) and path and "\0" not in path:
                self.environments[backend] = path
            elif path is not REFUSED:
                keys = ("python", backend) if backend else ("python",)
                text = "must be the path of a virtual environment or of its Python, such as .venv/bin/python"
                self.refuse(keys, f"{text}, got {say(path)}")

    def cells(self, document: dict[str, Any], value: object) -> list[Entry]:
        if "cells" not in document and "tasks" not in document:
            self.refuse((), "cells is missing; write at least one entry, for example - workload: mnist_mlp")
        return [entry for i, item in self.items(("cells",), value) for entry in self.entry(("cells", i), item)]

    def entry(self, path: Path, value: object) -> list[Entry]:
        """Return the entry and its includes."""
        if not isinstance(value, dict):
            if value is not REFUSED:
                self.refuse(path, f"must be a mapping with a workload, got {say(value)}")
            return []
        workload = self.workload(path, value)
        if workload is None:
            return []
        own_keys = self.part_keys(
            path, self.given(path, value, workload, extra=("workload", "include", "exclude")), workload
        )
        if isinstance(value["workload"], dict):
            for problem in filter(None, map(grammar.call_problem, own_keys.params.get("call", ()))):
                self.refuse((*path, "params", "call"), problem)
            own_keys = _of_program(own_keys, self.program(path, value["workload"]))
        entry = self.filled(path, own_keys, workload)
        self.check_trace(path, own_keys, entry)
        entries = [replace(entry, excludes=self.excludes((*path, "exclude"), value.get("exclude", REFUSED), entry))]
        for index, item in self.items((*path, "include"), value.get("include", REFUSED)):
            include_path = (*path, "include", index)
            include_keys = self.given(include_path, item, workload)
            joined_keys = self.part_keys(include_path, own_keys.replaced_by(include_keys), workload)
            entries.append(self.filled(include_path, joined_keys, workload))
            self.check_trace(include_path, include_keys, entries[-1])
        single_entries = [entry for filled_entry in entries for entry in parts.by_part(filled_entry)]
        return [arm for filled_entry in single_entries for arm in instrument_keys.arms(filled_entry)]

    def part_keys(self, path: Path, own_keys: _OwnKeys, workload: CatalogWorkload) -> _OwnKeys:
        """Return the keys of an entry of single layers or operations with the names of all; refuse its problems."""
        if not is_part(workload.name):
            return own_keys
        for key, problem in parts.problems(workload, own_keys.params, sets_batch="batch_size" in own_keys.axes):
            where = (*path, key) if (*path, key) in self.lines else path
            self.refuse(where, problem if where != path else f"{key} {problem}")
        return replace(own_keys, params=parts.with_names(workload, own_keys.params))

    def workload(self, path: Path, value: dict[str, Any]) -> CatalogWorkload | None:
        if "workload" not in value:
            self.refuse(path, "workload is missing")
            return None
        name = value["workload"]
        if isinstance(name, dict):
            return self.script((*path, "workload"), name)
        named_workload = (
            workload_named(name, self.catalog) if isinstance(name, str) else f"must be one name, got {say(name)}"
        )
        if isinstance(named_workload, CatalogWorkload):
            return named_workload
        if name is not REFUSED:
            self.refuse((*path, "workload"), named_workload)
        return None

    def script(self, path: Path, value: dict[str, Any]) -> CatalogWorkload | None:
        """Read a program: its path, the words of its arguments, and the call to measure."""
        script = self.mapping(path, value, grammar.SCRIPT_KEYS).get("script", REFUSED)
        if script is REFUSED:
            self.refuse(path, "script is missing; write for example {script: train.py}")
        elif problem := grammar.script_problem(script):
            self.refuse((*path, "script"), problem)
        else:
            return user_workload(f"{SCRIPT}{script}")
        return None

    def program(self, path: Path, value: dict[str, Any]) -> Axes:
        """Return the arguments and the call of a program as parameters of its cells."""
        params: Axes = {}
        words = value.get("args", [])
        if not isinstance(words, list) or not all(isinstance(word, str | int | float) for word in words):
            self.refuse((*path, "workload", "args"), f"must be a list of words, got {say(words)}")
        elif words:
            text = shlex.join(word if isinstance(word, str) else json.dumps(word) for word in words)
            params["args"] = (text,)
            if problem := grammar.ARGUMENTS.problem(text):
                self.refuse((*path, "workload", "args"), problem)
        if "call" in value:
            call = value["call"]
            params["call"] = (str(call),)
            if problem := grammar.call_problem(call):
                self.refuse((*path, "workload", "call"), problem)
        for key, rule in grammar.PROGRAM_KEYS.items():
            checked = self.scalar((*path, "workload", key), rule, value[key]) if key in value else None
            if checked not in (None, grammar.AS_WRITTEN):
                params[key] = (checked,)
        return params

    # One entry or include.

    def given(self, path: Path, value: object, workload: CatalogWorkload, extra: tuple[str, ...] = ()) -> _OwnKeys:
        allowed_keys = (
            *extra,
            "params",
            "backends",
            instrument_keys.TRACE,
            instrument_keys.STALLS,
            *DEFAULTS,
            *workload.params,
        )
        members = self.mapping(path, value, allowed_keys, lambda key: self.advice(key, workload, allowed_keys))
        params = members.get("params", {})
        if isinstance(params, list):
            self.refuse((*path, "params"), f"must be a mapping, got {say(params)}")
            params = {}
        axes = self.axes(path, members, SETTINGS)
        return _OwnKeys(
            self.names((*path, "backends"), members["backends"], self.backends) if "backends" in members else None,
            axes,
            self.axes(path, members, workload.params) | self.params(path, params, workload, members),
            self.scalars(path, members, LIMITS),
            instrument_keys.read_trace(self, (*path, key), members[key])
            if (key := instrument_keys.TRACE) in members
            else None,
            instrument_keys.read_stalls(self, (*path, key), members[key], axes)
            if (key := instrument_keys.STALLS) in members
            else None,
        )

    def advice(self, key: str, workload: CatalogWorkload, allowed_keys: Iterable[str]) -> str:
        """Return the advice for a key that an entry must not have."""
        if not any(key in other.params for other in self.catalog.workloads.values()):
            if near_text := near(key, allowed_keys):
                return near_text
        elif not workload.is_users:
            return f"; {workload.name} has no such parameter"
        return "; a parameter of your own workload goes under params" if workload.is_users else ""

    def params(self, path: Path, value: object, workload: CatalogWorkload, entry: dict[str, Any]) -> Axes:
        """Read `params:`, which may contain parameters of the workload too."""
        params_path = (*path, "params")
        if workload.is_users:
            members = self.mapping(params_path, value, None)
            for name in [name for name in members if not grammar.NAME.fullmatch(name)]:
                self.refuse((*params_path, name), "must be a lower-case name of at most 32 letters, digits and _")
                del members[name]
            return self.axes(params_path, members, dict.fromkeys(members, USER_PARAM))
        members = self.mapping(params_path, value, workload.params)
        for name in [name for name in members if name in entry]:
            self.refuse((*params_path, name), "must be given once, got it in params too")
        return self.axes(params_path, members, workload.params)

    def excludes(self, path: Path, value: object, entry: Entry) -> tuple[Axes, ...]:
        items = self.items(path, value)
        if len(items) > MAX_EXCLUDES:
            self.refuse(path, f"must have at most {MAX_EXCLUDES} items (a value may be a list), got {len(items)}")
            return ()
        params = {key: values for name, values in entry.params.items() for key in self.parameter_keys(entry, name)}
        entry_axes: Axes = {**params, **entry.axes, "backend": BACKENDS}
        checked = (self.exclude((*path, index), item, entry, entry_axes) for index, item in items)
        return tuple(axes for axes in checked if axes)

    @staticmethod
    def parameter_keys(entry: Entry, name: str) -> list[str]:
        """Return the keys of a parameter in an exclude: of a user's own workload it may be named like a setting."""
        return [name, f"{PARAMS}{name}"] if entry.workload.is_users else [name]

    def exclude(self, path: Path, value: object, entry: Entry, entry_axes: Axes) -> Axes | None:
        """Read the points to leave out. Each value must be one of the entry's; otherwise the exclude has no effect."""
        members = self.mapping(path, value, entry_axes)
        if isinstance(value, dict) and not value:
            self.refuse(path, "must name at least one setting, got none")
        hiding = dict.fromkeys((key for key in SETTINGS if f"{PARAMS}{key}" in entry_axes), USER_PARAM)
        rules = {
            **dict.fromkeys(entry_axes, USER_PARAM),
            **entry.workload.params,
            **SETTINGS,
            **hiding,
            "backend": _BACKEND,
        }
        checked = self.axes(path, members, rules)
        for key, values in checked.items():
            entry_values = {repr(item) for item in entry_axes[key]}
            for item in [item for item in values if repr(item) not in entry_values]:
                name = f"; {PARAMS}{key} is the parameter of that name" if key in hiding else ""
                self.refuse(
                    (*path, key), f"must be one of the entry's values {_some(entry_axes[key])}, got {say(item)}{name}"
                )
        return checked if len(checked) == len(members) else None

    def filled(self, path: Path, own_keys: _OwnKeys, workload: CatalogWorkload) -> Entry:
        """Return the entry with defaults: its own keys override the matrix's, the workload's and the grammar's."""
        builtin = {key: rule.default for key, rule in DEFAULTS.items()}
        builtin |= workload.own_defaults | parts.own_defaults(workload.name)
        defaults = self.defaults_of(own_keys, workload)
        settled = {key: value for key, value in (builtin | defaults).items() if value is not None}
        axes = {key: own_keys.axes.get(key, (settled[key],)) for key in SETTINGS}
        params = {k: (rule.normal(rule.default),) for k, rule in workload.params.items() if rule.default is not None}
        all_params = {parameter_key(name): values for name, values in (params | own_keys.params).items()}
        for conflict in conflicts(all_params | axes, workload):
            self.refuse_conflict(path, own_keys, conflict)
        if own_keys.stalls and (problem := instrument_keys.stalls_problem(workload, axes["phase"])):
            self.refuse(path, problem)
        limits = {key: settled[key] for key in LIMITS} | own_keys.limits
        backends = self.backends if own_keys.backends is None else own_keys.backends
        return Entry(
            *(path_text(path), self.line(path), workload, backends, axes, params | own_keys.params, limits),
            trace=None if is_script(workload.name) else own_keys.trace or self.trace,
            set_by_matrix=set_by_matrix(workload, {*own_keys.axes, *defaults}),
            sets_device="device" in {*own_keys.axes, *defaults},
            stalls=bool(own_keys.stalls),
        )

    def defaults_of(self, own_keys: _OwnKeys, workload: CatalogWorkload) -> dict[str, Scalar]:
        """Return the matrix's defaults that apply to a workload: to a program those that its call can take."""
        if not is_script(workload.name):
            return self.defaults
        taken_keys = {*LIMITS}.union(*(program_settings(call) for call in own_keys.params.get("call", ("",))))
        defaults = {key: value for key, value in self.defaults.items() if key in taken_keys}
        if defaults.get("steps_per_epoch") == "auto":  # its own is one pass
            del defaults["steps_per_epoch"]
        return defaults

    def check_trace(self, path: Path, own_keys: _OwnKeys, entry: Entry) -> None:
        """Refuse the trace of an entry without a cell to trace; one that it got from elsewhere is not meant for it."""
        if own_keys.trace and is_script(entry.workload.name):
            self.refuse((*path, instrument_keys.TRACE), "must be left out with a script, which is not traced")
        elif own_keys.trace and (
            problem := instrument_keys.trace_problem(entry.axes["implementation"], entry.axes["call"], entry.backends)
        ):
            self.refuse((*path, instrument_keys.TRACE), problem)

    def refuse_conflict(self, path: Path, own_keys: _OwnKeys, conflict: Conflict) -> None:
        """Report the conflict where it was written: in the entry, or once in the defaults."""
        pair = (conflict.key, conflict.other)
        shared_keys = [key for key in pair if key in self.defaults]
        if conflict.key in own_keys.axes | own_keys.params:
            self.refuse((*path, conflict.key), conflict.text)
        elif conflict.other in own_keys.axes or conflict.other == "workload" or not shared_keys:
            self.refuse(path, f"{conflict.key} {conflict.text}")
        elif (
            problem := self.problem(("defaults", shared_keys[0]), f"{conflict.key} {conflict.text}")
        ) not in self.problems:
            note(self.problems, problem)


def _of_program(own_keys: _OwnKeys, params: Axes) -> _OwnKeys:
    """Return the keys of an entry with those of its program, whose call decides the phase."""
    calls = (own_keys.params | params).get("call", ("",))
    phases = tuple(dict.fromkeys(filter(None, map(call_phase, calls))))
    phase: Axes = {"phase": phases} if len(phases) == 1 else {}
    return replace(own_keys, params=own_keys.params | params, axes=phase | own_keys.axes)


def set_by_matrix(workload: CatalogWorkload, keys: Iterable[str]) -> str:
    """Return the setting that lists which options of a user's workload the matrix decides, given the keys it sets."""
    return ",".join(key for key in OWN_OPTIONS if key in keys) if workload.is_users else ""


def _some(values: tuple[Scalar, ...]) -> str:
    return ", ".join(say(value) for value in values[:12]) + (", ..." if len(values) > 12 else "")
