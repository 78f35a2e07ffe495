"""Applies the flags `--backend`, `--filter`, `--set` and `--repeats` to the entries of a matrix. Pure.

Promise: overrides are applied to axes before these are multiplied out, so that cells which are filtered out are never
created; one error reports all problems of the assignments. A key such as `feed` names a setting if there is one, of an
external command its parameter; `params.feed` always names a parameter.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from keras_matrix.records.backends import BACKENDS
from keras_matrix.records.host.inherited_environment import not_known
from keras_matrix.records.identity import PARAMS
from keras_matrix.records.parts import is_part
from keras_matrix.records.settings import Scalar
from keras_matrix.records.text import escaped, near
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.matrix.conflicts import conflicts
from keras_matrix.runner.matrix.entries import set_by_matrix
from keras_matrix.runner.matrix.entry import Entry
from keras_matrix.runner.matrix.grammar import DEFAULTS, LIMITS, SETTINGS, USER_PARAM, ValueRule
from keras_matrix.runner.matrix.parts import MEANINGS
from keras_matrix.runner.matrix.scalars import resolve, say, value_text


@dataclass(frozen=True, slots=True)
class Overrides:
    """The selections and replacements of the command line.

    `backends` selects by backend; `filters` selects what matches all of them (`key=pattern`, or only a part or pattern
    of a workload's name); `assignments` replaces a setting or a workload's parameter wherever it applies; `repeats`
    overrides any other number of repeats. `allowed_variables` are those that `env` may set beside the known ones.
    """

    backends: tuple[str, ...] = ()
    filters: tuple[str, ...] = ()
    assignments: Mapping[str, Scalar] = field(default_factory=dict)
    repeats: int | str | None = None
    allowed_variables: tuple[str, ...] = ()


def parse_assignment(text: str) -> tuple[str, Scalar]:
    """Read the `key=value` of `--set`; the value follows the rules of the file. Raises `UsageError`."""
    key, equals, written_value = text.partition("=")
    is_quoted = len(written_value) >= 2 and written_value[0] == written_value[-1] and written_value[0] in "'\""
    value = written_value[1:-1] if is_quoted else resolve(written_value)
    if not equals or not key or value is None:
        raise UsageError(f"--set {say(text)}: must be key=value, for example --set batch_size=64")
    return key, value


def overridden(entries: Sequence[Entry], overrides: Overrides) -> list[Entry]:
    """Return the entries with the overrides applied. Raises `UsageError` if an override is wrong or nothing matches."""
    problems = [*_backend_problems(entries, overrides), *_assignment_problems(entries, overrides.assignments)]
    if overrides.repeats is not None and (problem := LIMITS["repeats"].problem(overrides.repeats)):
        problems.append(f"--repeats: {problem}")
    if "env" not in overrides.assignments:  # whoever writes a variable into the command allows it
        problems += _variable_problems(entries, overrides.allowed_variables)
    if problems:
        raise UsageError("\n".join(problems))
    changed_entries = [_assigned(entry, overrides) for entry in entries]
    if overrides.assignments and (problems := _conflict_problems(changed_entries, overrides.assignments)):
        raise UsageError("\n".join(problems))
    if overrides.backends:
        changed_entries = [
            replace(e, backends=tuple(b for b in e.backends if b in overrides.backends)) for e in changed_entries
        ]
    return _filtered([entry for entry in changed_entries if entry.backends], overrides.filters)


def _backend_problems(entries: Sequence[Entry], overrides: Overrides) -> Iterator[str]:
    entry_backends = {backend: None for entry in entries for backend in entry.backends}
    named_backends = sorted(
        entry_backends, key=lambda backend: BACKENDS.index(backend) if backend in BACKENDS else len(BACKENDS)
    )
    for backend in overrides.backends:
        if backend not in named_backends:
            rule_text = f"must be a backend of the matrix ({', '.join(named_backends)})"
            yield f"--backend {escaped(backend)}: {rule_text}, got {say(backend)}{near(backend, named_backends)}"


def _assignment_problems(entries: Sequence[Entry], assignments: Mapping[str, Scalar]) -> Iterator[str]:
    known_keys = [*DEFAULTS, *_parameters(entries)]
    for key, value in assignments.items():
        flag = _flag(key, value)
        if key in ("backend", "backends", "workload"):
            yield f"{flag}: use --{'backend' if key != 'workload' else 'filter workload='} to choose a {key}"
        elif key not in known_keys:
            rule_text = "must be a setting or a parameter of a workload of the matrix"
            yield f"{flag}: {rule_text}, got {say(key)}{near(key, known_keys)}"
        elif key.removeprefix(PARAMS) in MEANINGS and any(
            is_part(entry.workload.name) and _parameter(entry, key) for entry in entries
        ):
            yield f"{flag}: must be set in the matrix: each layer or operation has its own input and arguments"
        else:
            takers = [entry for entry in entries if key in DEFAULTS or _parameter(entry, key)]
            key_problems = {_rule(entry, key).problem(value) for entry in takers}
            yield from sorted(f"{flag}: {problem}" for problem in key_problems if problem)


def _conflict_problems(entries: Sequence[Entry], assignments: Mapping[str, Scalar]) -> list[str]:
    texts = {
        f"{_flag(key, assignments[key])}: {entry.where}: {conflict.key} {conflict.text}": None
        for entry in entries
        for conflict in conflicts(entry.params | entry.axes, entry.workload)
        for key in (conflict.key, conflict.other)
        if key in assignments
    }
    return list(texts)


def _variable_problems(entries: Sequence[Entry], allowed_variables: Collection[str]) -> Iterator[str]:
    for entry in entries:
        names = {name for text in entry.axes.get("env", ()) for name in not_known(str(text))}
        if missing := sorted(names.difference(allowed_variables)):
            flags_text = " ".join(f"--allow-env {name}" for name in missing)
            text = (
                "a matrix sets options of backends and libraries by itself, other variables if the command allows them"
            )
            yield f"{entry.where}: env: {text}, got {', '.join(missing)}; add {flags_text}"


def _flag(key: str, value: Scalar) -> str:
    if key == "env":
        return "--set env"  # its value may be a credential
    return escaped(f"--set {key}={value_text(value)}")


def _parameters(entries: Sequence[Entry]) -> list[str]:
    """Return the keys of the parameters of these entries: their own names, and those that no setting has."""
    names = dict.fromkeys(name for entry in entries for name in entry.params)
    return [name for name in names if name not in DEFAULTS] + [f"{PARAMS}{name}" for name in names]


def _parameter(entry: Entry, key: str) -> str | None:
    """Return the name of the parameter of an entry that a key names; None for a setting, or if it has none."""
    name = key.removeprefix(PARAMS)
    if name not in entry.params:
        return None
    # Parameters of an external command may be named like settings, which do not apply to it.
    is_setting = name == key and key in DEFAULTS and not (entry.task and key in SETTINGS)
    return None if is_setting else name


def _rule(entry: Entry, key: str) -> ValueRule:
    name = _parameter(entry, key)
    return DEFAULTS[key] if name is None else entry.workload.params.get(name, USER_PARAM)


def _assigned(entry: Entry, overrides: Overrides) -> Entry:
    assigned_keys = [key for key in overrides.assignments if key in DEFAULTS or _parameter(entry, key)]
    normal = {key: _rule(entry, key).normal(overrides.assignments[key]) for key in assigned_keys}
    params = {name: value for key, value in normal.items() if (name := _parameter(entry, key))}
    values = {key: value for key, value in normal.items() if not _parameter(entry, key)}
    repeats: dict[str, Scalar] = {} if overrides.repeats is None else {"repeats": overrides.repeats}
    applicable = [*SETTINGS] if entry.task is None else ["cpus", "threads"]  # a command decides the others itself
    if is_part(entry.workload.name):
        applicable.remove("batch_size")  # it is the first size of its input
    return replace(
        entry,
        set_by_matrix=set_by_matrix(entry.workload, {*entry.set_by_matrix.split(","), *values}),
        axes=entry.axes | {key: (value,) for key, value in values.items() if key in applicable},
        params=entry.params | {name: (value,) for name, value in params.items()},
        limits=entry.limits | {key: value for key, value in values.items() if key in LIMITS} | repeats,
    )


def _filtered(entries: list[Entry], filters: Sequence[str]) -> list[Entry]:
    selected_entries = entries
    for text in filters:
        key, pattern = _filter(entries, text)
        if not _matching(entries, key, pattern):
            texts = list(dict.fromkeys(value_text(v) for e in entries for v in _values(e, key)))
            values_text = ", ".join(texts[:20]) + (", ..." if len(texts) > 20 else "")
            advice = f"{key} is one of {values_text}{near(pattern, texts)}{_other_name(entries, key)}"
            raise UsageError(f"--filter {escaped(text)}: matches no cell; {advice}")
        selected_entries = _matching(selected_entries, key, pattern)
    if not selected_entries:
        raise UsageError(f"--filter {escaped(' --filter '.join(filters))}: no cell matches all of them; use fewer")
    return selected_entries


def _filter(entries: Sequence[Entry], text: str) -> tuple[str, str]:
    """Return the key and the pattern of a filter; a part of a workload's name becomes a pattern."""
    key, equals, pattern = text.partition("=")
    if not equals:
        return "workload", text if any(sign in text for sign in "*?[") else f"*{text}*"
    known_keys = ["workload", "backend", *SETTINGS, *_parameters(entries)]
    if key not in known_keys:
        rule_text = "must begin with a setting or a parameter of a workload of the matrix"
        raise UsageError(f"--filter {escaped(text)}: {rule_text}, got {say(key)}{near(key, known_keys)}")
    return key, pattern


def _other_name(entries: Sequence[Entry], key: str) -> str:
    """Return the name of a parameter that is named like a setting, as advice; empty if there is none."""
    hides_parameter = any(key in entry.params and _parameter(entry, key) is None for entry in entries)
    return f"; {PARAMS}{key} is the parameter of that name" if hides_parameter else ""


def _matching(entries: Sequence[Entry], key: str, pattern: str) -> list[Entry]:
    matching = [(e, tuple(v for v in _values(e, key) if fnmatchcase(value_text(v), pattern))) for e in entries]
    return [_narrowed(entry, key, values) for entry, values in matching if values]


def _values(entry: Entry, key: str) -> tuple[Scalar, ...]:
    if key == "workload":
        return (entry.workload.name,)
    if key == "backend":
        return entry.backends
    name = _parameter(entry, key)
    return entry.axes.get(key, ()) if name is None else entry.params[name]


def _narrowed(entry: Entry, key: str, values: tuple[Scalar, ...]) -> Entry:
    if key == "workload":
        return entry
    if key == "backend":
        return replace(entry, backends=tuple(str(value) for value in values))
    name = _parameter(entry, key)
    if name is None:
        return replace(entry, axes=entry.axes | {key: values})
    return replace(entry, params=entry.params | {name: values})
