"""Titles of works: the workload, and the settings that differ from the usual values or between its works."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields

from keras_matrix.records.settings import IMPLEMENTATIONS, Scalar, Settings
from keras_matrix.records.task import DEFINITION, PREFIX

Usual = Mapping[str, Mapping[str, Scalar]]
"""From a workload's name to its usual values."""
NAMES = tuple(one.name for one in fields(Settings) if one.name not in ("params", "backend", "workload"))


def titles(works: Sequence[Settings], usual: Usual) -> list[str]:
    """Return a title for each work: its workload, its unusual settings, and those that vary within the workload."""
    flat = [flat_settings(one) for one in works]
    seen: dict[str, list[dict[str, Scalar]]] = {}
    for one, values in zip(works, flat, strict=True):
        seen.setdefault(one.workload, []).append(values)
    varying = {workload: varying_keys(several) for workload, several in seen.items()}
    return [
        " ".join([one.workload, *_details(values, varying[one.workload], usual.get(one.workload, {}))])
        for one, values in zip(works, flat, strict=True)
    ]


def _details(values: Mapping[str, Scalar], varying: Collection[str], usual: Mapping[str, Scalar]) -> list[str]:
    return [
        f"{key}={value}" for key, value in values.items() if key in varying or (key in usual and usual[key] != value)
    ]


def title_order(title: str) -> str:
    """Return a key that sorts titles, those of several implementations from Keras to native code."""
    for place, name in enumerate(IMPLEMENTATIONS):
        title = title.replace(f"implementation={name}", f"implementation={place}")
    return title


def varying_keys(several: Sequence[Mapping[str, Scalar]]) -> set[str]:
    """Return the keys whose values differ between these settings."""
    return {key for key in set().union(*several) if len({values.get(key) for values in several}) > 1}


def flat_settings(settings: Settings) -> dict[str, Scalar]:
    """Return the settings and parameters of a work by name; of an external command its parameters only."""
    params = {key: value for key, value in settings.params.items() if key != DEFINITION}
    if settings.workload.startswith(PREFIX):
        return params
    return {**params, **{name: getattr(settings, name) for name in NAMES}}
