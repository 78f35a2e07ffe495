"""Reads the entries of `tasks` by the rules of the grammar, and reports every problem with its line.

Builds the matrix entry of a task from a matrix file or a `.cfg` file. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from keras_matrix.records.host.inherited_environment import VARIABLE
from keras_matrix.records.settings import Scalar
from keras_matrix.records.task import DEFINITION, UPTIME, Compute, Goal, MetricSpec, Task
from keras_matrix.records.text import near
from keras_matrix.runner.matrix import task_rules as rules
from keras_matrix.runner.matrix.entry import Entry
from keras_matrix.runner.matrix.grammar import LIMITS, SETTINGS, USER_PARAM, Axes
from keras_matrix.runner.matrix.scalars import say
from keras_matrix.runner.matrix.strict_yaml import REFUSED, Path, path_text
from keras_matrix.runner.matrix.task_rules import OWN, SHARED, TaskRequest, labelled, workload_of

if TYPE_CHECKING:
    from keras_matrix.runner.matrix.value_reader import ValueReader

ALL = "all"


def read_tasks(reader: ValueReader, value: object) -> list[Entry]:
    """Return the entries of `tasks`."""
    entries: list[Entry] = []
    names: set[str] = set()
    for index, item in reader.items(("tasks",), value):
        path = ("tasks", index)
        if not isinstance(item, dict):
            reader.refuse(path, f"must be a mapping with a task and its command, got {say(item)}")
        elif (entry := _Task(reader, path, item).entry()) is not None:
            if entry.workload.name in names:
                reader.refuse(
                    (*path, "task"), f"must be another name than that of an earlier task, got {item['task']!r}"
                )
            names.add(entry.workload.name)
            entries.append(entry)
    return entries


class _Task:
    """One entry of `tasks`."""

    def __init__(self, reader: ValueReader, path: Path, value: dict[str, Any]) -> None:
        self.reader, self.path, self.value = reader, path, value
        self.known = reader.mapping(path, value, rules.KEYS, rules.task_key_advice)
        self.problems_before = len(reader.problems)

    def entry(self) -> Entry | None:
        """Return the entry, or None if it has problems."""
        name, params = self.name(), self.params()
        switches = {key: self.scalar(key, rule) for key, rule in rules.SWITCHES.items()}
        shared_values = {key: self.scalar(key, rule) for key, rule in rules.SHARED.items()}
        shared_values |= {key: self.reader.defaults.get(key) for key in LIMITS if key in rules.SWITCHES}
        metrics = self.metrics()
        command, compare = self.command(switches["shell"]), switches.pop("compare")
        task = Task(
            *(name, command, metrics, self.primary(switches.pop("primary"), metrics)),
            environment=self.environment(),
            inherit=self.inherit(),
            wrap=self.words("wrap"),
            **switches,
        )
        if backends := self.reader.names((*self.path, "backends"), self.known.get("backends", REFUSED)):
            params = {**params, "backend": backends}
        compared_axis = self.compared(compare, params)
        self.check_places(task, params)
        if len(self.reader.problems) > self.problems_before or not command:
            return None
        request = TaskRequest(
            task, compared_axis, labelled(compared_axis, params[compared_axis] if compared_axis else ())
        )
        other_params = {key: values for key, values in params.items() if key != compared_axis}
        return entry_of((path_text(self.path), self.reader.line(self.path)), request, other_params, shared_values)

    # Its parts.

    def name(self) -> str:
        stated_name = self.known.get("task", REFUSED)
        if "task" not in self.value:
            self.refuse((), "task is missing; give it a name")
        elif stated_name is not REFUSED and not (isinstance(stated_name, str) and rules.NAME.fullmatch(stated_name)):
            self.refuse(("task",), f"must be a name of at most 64 letters, digits and _.-, got {say(stated_name)}")
        return str(stated_name)

    def scalar(self, key: str, rule: Any) -> Any:
        """Return the value of a key, or else of the defaults or of the rule."""
        if key in self.known:
            checked = self.reader.scalar((*self.path, key), rule, self.known[key])
            return rule.default if checked is None else checked
        return self.reader.defaults.get(key, rule.default) if key in rules.SHARED else rule.default

    def command(self, shell: bool) -> list[str]:
        stated_command = self.known.get("command", REFUSED)
        if "command" not in self.value:
            self.refuse((), "command is missing; write for example command: [python, train.py]")
        elif shell:
            return [checked] if (checked := self.text(("command",), stated_command)) else []
        elif isinstance(stated_command, str):
            self.refuse(("command",), f"must be a list of words; a text needs shell: true, got {say(stated_command)}")
        else:
            return self.words("command", needed=True)
        return []

    def words(self, key: str, needed: bool = False) -> list[str]:
        """Return a list of texts."""
        stated_words = self.known.get(key, REFUSED)
        if stated_words == [] and not needed:
            return []
        items = self.reader.items((*self.path, key), stated_words)
        if len(items) > rules.MAX_WORDS:
            self.refuse((key,), f"must have at most {rules.MAX_WORDS} words, got {len(items)}")
        words_read = [self.text((key, index), item) for index, item in items[: rules.MAX_WORDS]]
        return [word for word in words_read if word is not None]

    def text(self, path: Path, value: object) -> str | None:
        """Return a text without NUL."""
        if isinstance(value, str) and "\0" not in value and len(value) <= rules.MAX_WORD:
            return value
        if value is not REFUSED:
            quoted_text = f'; quote it: "{value}"' if isinstance(value, (bool, int, float)) else ""
            self.refuse(path, f"must be text of at most {rules.MAX_WORD} characters, got {say(value)}{quoted_text}")
        return None

    def params(self) -> Axes:
        members = self.reader.mapping((*self.path, "params"), self.known.get("params", {}), None)
        reserved = {*rules.LATE, *rules.ALWAYS, DEFINITION}
        for key in [key for key in members if not rules.AXIS_NAME.fullmatch(key) or key in reserved]:
            self.refuse(("params", key), f"must be a lower-case name that is not reserved, got {say(key)}")
            members.pop(key)
        return self.reader.axes((*self.path, "params"), members, dict.fromkeys(members, USER_PARAM))

    def environment(self) -> dict[str, str]:
        members = self.reader.mapping((*self.path, "environment"), self.known.get("environment", {}), None)
        variables = {}
        for key, value in members.items():
            if not VARIABLE.fullmatch(key):
                self.refuse(("environment", key), f"must be the name of a variable, got {say(key)}")
            elif (checked := self.text(("environment", key), value)) is not None:
                variables[key] = checked
        return variables

    def inherit(self) -> list[str] | None:
        if self.known.get("inherit") == ALL:
            return None
        names = self.words("inherit")
        for index, name in enumerate(names):
            if not VARIABLE.fullmatch(name):
                self.refuse(("inherit", index), f"must be {ALL} or names of variables, got {say(name)}")
        return names

    def metrics(self) -> list[MetricSpec]:
        members = self.reader.mapping((*self.path, "metrics"), self.known.get("metrics", {}), None)
        if len(members) > rules.MAX_METRICS:
            self.refuse(("metrics",), f"must be at most {rules.MAX_METRICS}, got {len(members)}")
        return [self.metric(name, value) for name, value in list(members.items())[: rules.MAX_METRICS]]

    def metric(self, name: str, value: object) -> MetricSpec:
        path = (*self.path, "metrics", name)
        if not rules.NAME.fullmatch(name) or name == UPTIME:
            rule = f"must be a name of at most 64 letters, digits and _.-, and not {UPTIME}"
            self.refuse(("metrics", name), f"{rule}, got {say(name)}")
        metric_members = {"pattern": value} if isinstance(value, str) else value
        members = self.reader.mapping(path, metric_members, rules.METRIC_KEYS, rules.metric_key_advice)
        usual = {key: rule.default for key, rule in rules.METRIC.items()}
        settled = usual | self.reader.scalars(path, members, rules.METRIC)
        return MetricSpec(
            name=name,
            pattern=self.pattern((*path, "pattern"), members["pattern"]) if "pattern" in members else None,
            unit=None if settled["unit"] is None else str(settled["unit"]),
            compute=Compute(str(settled["compute"])),
            goal=Goal(str(settled["goal"])),
            discard=int(settled["discard"] or 0),
        )

    def pattern(self, path: Path, value: object) -> str | None:
        problem = rules.pattern_problem(value) if isinstance(value, str) else f"must be text, got {say(value)}"
        if problem and value is not REFUSED:
            self.reader.refuse(path, problem)
            return None
        return str(value)

    def primary(self, name: object, metrics: list[MetricSpec]) -> str:
        names = [metric.name for metric in metrics]
        if name is None:
            return names[0] if names else UPTIME
        if name not in (*names, UPTIME):
            rule = f"must be one of its metrics ({', '.join([*names, UPTIME])})"
            self.refuse(("primary",), f"{rule}, got {say(name)}{near(str(name), [*names, UPTIME])}")
        return str(name)

    def compared(self, axis: object, params: Axes) -> str | None:
        if axis is None:
            varied_keys = [key for key, values in params.items() if len(values) > 1]
            return "backend" if "backend" in params else next(iter(varied_keys), None)
        if axis not in params:
            rule = f"must be one of its axes ({', '.join(params) or 'no axis'})"
            self.refuse(("compare",), f"{rule}, got {say(axis)}{near(str(axis), params)}")
            return None
        return str(axis)

    def check_places(self, task: Task, params: Axes) -> None:
        """Refuse placeholders without a value, and axes without a placeholder."""
        known_names = {*params, *rules.LATE, *rules.ALWAYS} - ({"backend"} - params.keys())
        texts = {"command": task.command, "wrap": task.wrap, "environment": list(task.environment.values())}
        used_names: set[str] = set()
        for key, words in texts.items():
            names = [name for word in words for name in rules.PLACE.findall(word)]
            used_names |= set(names)
            for name in dict.fromkeys(name for name in names if name not in known_names):
                rule = f"{{{name}}} must be a parameter or one of {', '.join(sorted(known_names - set(params)))}"
                self.refuse(
                    (key,), f"{rule}{near(name, known_names)}; in a shell write ${{{name}}} for its own variables"
                )
        for name in [name for name in params if name not in used_names and name != "backend"]:
            self.refuse(("params", name), f"must be used in the command or the environment, as {{{name}}}")

    def refuse(self, path: Path, text: str) -> None:
        self.reader.refuse((*self.path, *path), text)


def entry_of(
    place: tuple[str, int | None], request: TaskRequest, params: Axes, shared_values: Mapping[str, Scalar | None]
) -> Entry:
    """Return the entry at `place` (its name and line); `shared_values` are settings and limits of commands."""
    stated_values = {key: value for key, value in shared_values.items() if value is not None}
    return Entry(
        where=place[0],
        line=place[1],
        workload=workload_of(request.task.name),
        backends=tuple(request.labels),
        axes=_axes("gpu" if request.task.gpus else "cpu", stated_values),
        params=params | {DEFINITION: (request.definition,)},
        limits={key: value for key, value in stated_values.items() if key in LIMITS},
        task=request,
    )


def with_gpus(entry: Entry, gpus: int | None) -> Entry:
    """Return a task's entry with another number of GPUs, unchanged for None."""
    if entry.task is None or gpus is None:
        return entry
    request = replace(entry.task, task=replace(entry.task.task, gpus=gpus))
    params = {key: values for key, values in entry.params.items() if key != DEFINITION}
    shared_values = {key: values[0] for key, values in entry.axes.items() if key in SHARED} | entry.limits
    return entry_of((entry.where, entry.line), request, params, shared_values)


def _axes(device: str, shared_values: Mapping[str, Scalar]) -> Axes:
    """Return the settings of a task's cells: one step, `OWN` for the command's decisions, and the shared ones."""
    usual = {key: rule.default for key, rule in SETTINGS.items()}
    usual |= {"batch_size": 1, "samples": 1, "epochs": 1, "discard": 0, "steps_per_epoch": 1, "device": device}
    usual |= {"phase": "task", "data": OWN, "precision": OWN, "feed": OWN, "league": "tasks"}
    usual |= {key: value for key, value in shared_values.items() if key in SETTINGS}
    return {key: (value,) for key, value in usual.items() if value is not None}
