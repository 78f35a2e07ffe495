"""Texts that all commands share: numbers with three significant digits and a unit, titles of cells, tables, JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from types import MappingProxyType

from keras_matrix.records.codec import canonical
from keras_matrix.records.names import assignment, parameter_key
from keras_matrix.records.settings import Scalar, Settings
from keras_matrix.records.task import DEFINITION, PREFIX
from keras_matrix.records.text import printable
from keras_matrix.runner.matrix import catalog
from keras_matrix.runner.matrix.grammar import LARGEST, SETTINGS
from keras_matrix.runner.matrix.reader import TO_BE_FOUND

NOTHING = "-"
NONE_SHARED: Mapping[str, Scalar | None] = MappingProxyType({})
OF_COMMANDS = ("device", "cpus", "threads")  # the settings of an external command
# Settings for how long a cell is measured, not what it is.
LENGTHS = frozenset({"epochs", "discard", "steps_per_epoch", "samples", "seed"})


def seconds(value: float | None) -> str:
    """Return a duration such as `4.21 ms`."""
    if value is None:
        return NOTHING
    for limit, factor, unit in ((1e-3, 1e6, "us"), (1.0, 1e3, "ms")):
        if abs(value) < limit:
            return f"{significant(value * factor)} {unit}"
    return f"{significant(value)} s"


def duration(value: float) -> str:
    """Return a duration in whole minutes and seconds, such as `3 min 05 s`."""
    whole = round(value)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def significant(value: float | None, digits: int = 3) -> str:
    """Return a number with that many significant digits and no exponent."""
    if value is None:
        return NOTHING
    if abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    return f"{value:#.{digits}g}".rstrip(".")


def count(value: int | float | None) -> str:
    """Return a large count such as `25.6 M`."""
    if value is None:
        return NOTHING
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{significant(value / limit)} {unit}"
    return str(value)


def size(value: int | None) -> str:
    """Return a size such as `812 MiB`."""
    if value is None:
        return NOTHING
    if value >= 1 << 30:
        return f"{significant(value / (1 << 30))} GiB"
    return f"{significant(value / (1 << 20))} MiB"


def settings_text(settings: Settings, shared: Mapping[str, Scalar | None] = NONE_SHARED) -> str:
    """Return a cell's workload, and every parameter and setting that is not the default; an FC mode in any case.

    Settings that are `shared` with other cells are left out.
    """
    found = [assignment(key, value) for key, value in differing(settings) if key not in shared]
    return printable(" ".join([settings.workload, *found]))


def shared_settings(cells: Sequence[Settings]) -> dict[str, Scalar | None]:
    """Return the settings, not the parameters, that are not the default and that several cells all have."""
    if len(cells) < 2:
        return {}
    first, *others = [{(key, value) for key, value in differing(one) if key in SETTINGS} for one in cells]
    return dict(sorted(first.intersection(*others)))


def differing(settings: Settings) -> list[tuple[str, Scalar | None]]:
    """Return by key every parameter and setting of a cell that is not the default, and an FC mode in any case.

    Of a user's own workload the default is what the workload decides: what the matrix sets is named.
    """
    defaults, is_task = _default_params().get(settings.workload, {}), settings.workload.startswith(PREFIX)
    found: list[tuple[str, Scalar | None]] = [
        (parameter_key(name), value)
        for name, value in settings.params.items()
        if not (is_task and name == DEFINITION)
        and (name == "mode" or name not in defaults or not _equal(defaults[name], value))
    ]
    by_matrix, entry = settings.set_by_matrix.split(","), catalog.load().workloads.get(settings.workload)
    for name in OF_COMMANDS if is_task else SETTINGS:
        value, usual = getattr(settings, name), SETTINGS[name].default
        if name == "samples":
            usual = entry.samples if entry else catalog.USER_SAMPLES
        if name == "batch_size" and value == TO_BE_FOUND:
            value = LARGEST
        if name in by_matrix or not _equal(value, usual):
            found.append((name, value))
    return found


def _equal(one: Scalar | None, other: Scalar | None) -> bool:
    return canonical(one) == canonical(other)


def work(settings: Settings) -> str:
    """Return a cell's workload or, of the FC network, its mode and workers: `fc_data workers=2`."""
    if settings.workload != "fc":
        return settings.workload
    return f"{settings.params['mode']} workers={settings.params['workers']}"


@cache
def _default_params() -> dict[str, dict[str, Scalar | None]]:
    return {
        name: {param: rule.default for param, rule in entry.params.items()}
        for name, entry in catalog.load().workloads.items()
    }


def title_defaults() -> dict[str, dict[str, Scalar]]:
    """Return, for each workload of the catalog, the batch size and parameters that the title of a row leaves out."""
    settings = {key: rule.default for key, rule in SETTINGS.items() if rule.default is not None and key not in LENGTHS}
    return {
        name: {
            **settings,
            "batch_size": entry.batch_size,
            **{parameter_key(key): value for key, value in _default_params()[name].items() if value is not None},
        }
        for name, entry in catalog.load().workloads.items()
    }


def document(fields: Mapping[str, object]) -> str:
    """Return the JSON document that a command prints with --json."""
    return json.dumps({"version": 1, **fields}, indent=1, allow_nan=False)


def columns(rows: list[list[str]], right: frozenset[int] = frozenset()) -> list[str]:
    """Return rows of text as aligned lines; columns whose index is in `right` end flush."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))] if rows else []
    return [
        "  ".join(
            text.rjust(width) if i in right else text.ljust(width)
            for i, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
