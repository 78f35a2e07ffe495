"""Which tests cannot run under this Python, because it has no build of a backend that they need: one rule for all.

A test of the process tier needs the backends that its parameters and its mark `backends("torch")` name. If it has
neither, it needs those that its code names as text; the mark without names says that it needs none of these. It is
skipped with the reason where one is missing. A test that is for any backends takes them from `INSTALLED`. A backend
that does not train is in an environment of its own, `APART`, that a test gives to `--python`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.records.backends import BACKENDS, TRAINING_BACKENDS, service_name

ROOT = Path(__file__).parents[1]
INSTALLED = tuple(name for name in BACKENDS if find_spec(name) is not None)
# Made by `ci/environment openvino-cpu`.
APART = {name: ROOT / f".venv-{service_name(name, 'cpu')}" for name in BACKENDS if name not in TRAINING_BACKENDS}


def why_not(item: pytest.Item) -> str | None:
    """Return why a test cannot run here; None if it can. A test that starts no process needs no backend."""
    if not item.get_closest_marker("process"):
        return None
    missing = sorted(needed(item) - {*INSTALLED})
    for name in [name for name in missing if name in APART]:
        if not (APART[name] / "bin" / "python").exists():
            return f"no {name}: make its environment with ci/environment {service_name(name, 'cpu')}"
        missing.remove(name)
    return f"no {' and no '.join(missing)} for Python {'.'.join(map(str, sys.version_info[:2]))}" if missing else None


def needed(item: Any) -> set[str]:
    """Return the backends that a test names."""
    parameters = getattr(item, "callspec", None)
    of_parameters = {*_named(list(parameters.params.values()))} if parameters else set()
    marks = [mark.args for mark in item.iter_markers("backends")]
    of_code = set() if marks else {*_named(item.function.__code__.co_consts)}
    return {name for names in marks for name in names} | (of_parameters or of_code)


def _named(value: Any) -> Iterator[str]:
    if isinstance(value, str) and value in BACKENDS:
        yield value
    elif isinstance(value, dict):
        yield from _named([*value, *value.values()])
    elif isinstance(value, tuple | list | set | frozenset):
        yield from (name for part in value for name in _named(part))
