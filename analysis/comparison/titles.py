"""Titles of works: the workload, and the settings that differ from the usual values or between its works.

A title only names a work for a reader, and joins nothing: rows are found by `work_key`. Promise: the titles of
different works of one page differ. A parameter that is named like a setting is `params.feed` if titles of its workload
show that setting, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from keras_matrix.records.codec import canonical
from keras_matrix.records.identity import PARAMS, SETTINGS, assignment, parameter_key
from keras_matrix.records.settings import CALLS, IMPLEMENTATIONS, Scalar, Settings

Usual = Mapping[str, Mapping[str, Scalar]]
"""From a workload's name to its usual values, by their keys (`records.identity`)."""
Labels = Mapping[str, Scalar]
"""The settings and parameters of a work by their keys, without workload and backend."""
_LABELS = tuple(name for name in SETTINGS if name not in ("backend", "workload"))


@dataclass(frozen=True, slots=True)
class Title:
    """The title of a work: its workload, and by key the text of each setting and parameter that it names."""

    workload: str
    details: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return f"{self.workload} {self.differing}" if self.details else self.workload

    @property
    def differing(self) -> str:
        """The title without its workload."""
        return " ".join(text for _, text in self.details)

    def without(self, *keys: str) -> Title:
        """Return the title of the work without these settings."""
        return Title(self.workload, tuple(detail for detail in self.details if detail[0] not in keys))


def titles(works: Sequence[Settings], usual: Usual) -> list[str]:
    """Return a title for each work: its workload, its unusual settings, and those that vary within the workload."""
    return [str(title) for title in titled(works, usual)]


def titled(works: Sequence[Settings], usual: Usual) -> list[Title]:
    """Return the title of each work, as `titles`, by its parts."""
    return titles_of([(settings.workload, work_labels(settings)) for settings in works], usual)


def titles_of(works: Sequence[tuple[str, Labels]], usual: Usual) -> list[Title]:
    """Return the title of each work, given as its workload and its values."""
    varying = varying_by_workload(works)
    keys = [_shown(values, varying[name], usual.get(name, {})) for name, values in works]
    of_workload: dict[str, set[str]] = {}
    for (workload, _), work_keys in zip(works, keys, strict=True):
        of_workload.setdefault(workload, set()).update(work_keys)
    return [
        Title(workload, tuple((key, _text(key, values.get(key), of_workload[workload])) for key in work_keys))
        for (workload, values), work_keys in zip(works, keys, strict=True)
    ]


def differences(texts: Sequence[str], works: Sequence[Settings]) -> list[str]:
    """Return for each work whose text others have, too, what differs between them; empty for other works."""
    alike: dict[str, list[int]] = {}
    for place, text in enumerate(texts):
        alike.setdefault(text, []).append(place)
    differing = [""] * len(texts)
    for places in alike.values():
        for place, title in zip(places, titled([works[place] for place in places], {}), strict=True):
            differing[place] = title.differing
    return differing


def _shown(values: Labels, varying: Collection[str], usual: Labels) -> list[str]:
    """Return the keys that the title of a work names, in the order of its values."""
    return [key for key in values if key in varying or (key in usual and not _equal(usual[key], values[key]))]


def _text(key: str, value: Scalar | None, shown_names: Collection[str]) -> str:
    """Return a setting or parameter as text; a parameter has its own name unless a setting of that name is shown."""
    name = key.removeprefix(PARAMS)
    is_alone = key.startswith(PARAMS) and name in SETTINGS and name not in shown_names
    return assignment(name if is_alone else key, value)


def _equal(value: Scalar, other: Scalar) -> bool:
    """Return whether two values are equal and of one type: 1, 1.0, true and "1" are four different values."""
    return canonical(value) == canonical(other)


def title_order(title: str) -> str:
    """Return a key that sorts titles, implementations from Keras to native code and calls from `predict` on."""
    for key, names in (("implementation", IMPLEMENTATIONS), ("call", CALLS)):
        for name in sorted(names, key=len, reverse=True):  # a name may begin with another
            title = title.replace(f"{key}={name}", f"{key}={names.index(name)}")
    return title


def varying_keys(all_labels: Sequence[Labels]) -> set[str]:
    """Return the keys whose values differ between these settings."""
    texts = [{key: canonical(value) for key, value in values.items()} for values in all_labels]
    return {key for key in set().union(*all_labels) if len({labels.get(key) for labels in texts}) > 1}


def varying_by_workload(works: Iterable[tuple[str, Labels]]) -> dict[str, set[str]]:
    """Return for each workload the keys whose values differ between its works."""
    of_workload: dict[str, list[Labels]] = {}
    for workload, values in works:
        of_workload.setdefault(workload, []).append(values)
    return {workload: varying_keys(all_labels) for workload, all_labels in of_workload.items()}


def work_labels(settings: Settings) -> dict[str, Scalar]:
    """Return the parameters and settings of a work by their keys, without workload and backend."""
    params = {parameter_key(key): value for key, value in settings.params.items()}
    return {**params, **{name: getattr(settings, name) for name in _LABELS}}
