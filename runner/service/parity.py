"""What a comparison of backends takes: workloads with their parameters, installed backends, precisions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keras_matrix.records.backends import BACKENDS
from keras_matrix.records.settings import Scalar
from keras_matrix.records.text import near
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.executors import Executor
from keras_matrix.runner.matrix.catalog import small
from keras_matrix.runner.matrix.grammar import USER_WORKLOAD
from keras_matrix.runner.measure.request import check_backends

PRECISIONS = ("float64", "float32")


def params_of(workload_catalog: Any, name: str, assigned: dict[str, Scalar]) -> dict[str, Scalar]:
    if USER_WORKLOAD.fullmatch(name):
        return assigned
    if name not in workload_catalog.workloads:
        raise UsageError(
            f"WORKLOAD: must be one of {', '.join(workload_catalog.workloads)} or your own module:build, got {name!r}"
            f"{near(name, workload_catalog.workloads)}"
        )
    rules = workload_catalog.workloads[name].params
    for key, value in assigned.items():
        if key not in rules:
            raise UsageError(f"--set {key}: {name} takes {', '.join(rules)}, got {key!r}{near(key, rules)}")
        if problem := rules[key].problem(value):
            raise UsageError(f"--set {key}: {problem}")
    return {**small(name), **{key: rules[key].normal(value) for key, value in assigned.items()}}


def compared_backends(named_backends: Sequence[str], executor: Executor, least: int) -> list[str]:
    """Return the backends to compare: at least `least`, all of them installed. Raises `UsageError`."""
    check_backends(named_backends)
    candidates = [name for name in BACKENDS if not named_backends or name in named_backends]
    reason_by_backend = {name: reason for name in candidates if (reason := executor.missing(name))}
    if named_backends and reason_by_backend:
        raise UsageError(f"--backend: {'; '.join(reason_by_backend.values())}")
    present_backends = [name for name in candidates if name not in reason_by_backend]
    if len(present_backends) < least:
        reasons_text = f" ({'; '.join(reason_by_backend.values())})" if reason_by_backend else ""
        needed_text = "two backends" if least == 2 else "one backend"
        raise UsageError(
            f"--backend: parity needs at least {needed_text}, got {', '.join(present_backends) or 'none'}{reasons_text}"
        )
    return present_backends


def precisions_of(text: str) -> list[str]:
    precisions = [name for name in PRECISIONS if name in text.split(",")]
    if not precisions or set(text.split(",")) != set(precisions):
        raise UsageError(f"--precision: must be {' or '.join(PRECISIONS)}, or both separated by a comma, got {text!r}")
    return precisions
