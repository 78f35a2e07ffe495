"""The settings of a cell as text: those that are not the default, and the defaults."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from operator import attrgetter

from keras_matrix.records.identity import assignment, parameter_key
from keras_matrix.records.parts import KIND_OF_PART
from keras_matrix.records.settings import Scalar, Settings
from keras_matrix.records.task import DEFINITION, PREFIX
from keras_matrix.records.text import printable
from keras_matrix.runner.matrix import catalog
from keras_matrix.runner.matrix.grammar import LARGEST, SETTINGS, TO_BE_FOUND

OF_COMMANDS = ("device", "cpus", "threads")  # the settings of an external command
# Settings for how long a cell is measured, not what it is.
LENGTHS = frozenset({"epochs", "discard", "steps_per_epoch", "samples", "seed"})


def settings_text(settings: Settings, omitted_names: Collection[str] = ()) -> str:
    """Return a cell's workload, and every parameter and setting that is not the default; an FC mode in any case.

    Settings in `omitted_names` are left out.
    """
    return printable(
        settings.workload + _assignments(pair for pair in differing(settings) if pair[0] not in omitted_names)
    )


def settings_texts(cells: Sequence[Settings]) -> tuple[dict[str, Scalar], list[str]]:
    """Return the settings, not the parameters, that are not the default and that several cells all have; and the
    text of each cell as of `settings_text`, without these.

    A matrix has up to 100,000 cells with few values of each setting: a value is compared and written once.
    """
    groups: dict[tuple[str, str], list[int]] = {}
    for place, cell in enumerate(cells):
        groups.setdefault((cell.workload, cell.set_by_matrix), []).append(place)
    tables = [(places, _columns([cells[place] for place in places])) for places in groups.values()]
    alike = [{(column.key, column.shared) for column in table if column.shared is not None} for _, table in tables]
    shared_settings = dict(sorted(set.intersection(*alike))) if len(cells) > 1 else {}
    texts = [""] * len(cells)
    for places, table in tables:
        workload = [cells[places[0]].workload] * len(places)
        written_texts = zip(
            workload, *(column.texts for column in table if column.key not in shared_settings), strict=True
        )
        for place, text in zip(places, map("".join, written_texts), strict=True):
            texts[place] = text if text.isprintable() else printable(text)
    return shared_settings, texts


def differing(settings: Settings) -> list[tuple[str, Scalar]]:
    """Return by key every parameter and setting of a cell that is not the default, and an FC mode in any case.

    Of a user's own workload the default is what the workload decides: what the matrix sets is named.
    """
    usual = _usual(settings)
    named_settings = [_named(name, getattr(settings, name), default) for name, default in usual.items()]
    return [*_named_params(settings), *(pair for pair in named_settings if pair)]


@dataclass(frozen=True, slots=True)
class _Column:
    """A setting of cells of one workload, or all their parameters: the text of each, empty for the default.

    `shared` is the value that is not the default and that all have; None without one, and for parameters.
    """

    key: str
    texts: list[str]
    shared: Scalar | None = None


def _columns(cells: Sequence[Settings]) -> list[_Column]:
    """Return what is written of cells of one workload, of which the matrix sets the same options."""
    params_texts = [repr(cell.params) for cell in cells]
    params = {
        text: _assignments(_named_params(cell)) for text, cell in dict(zip(params_texts, cells, strict=True)).items()
    }
    columns = [_Column("params", [params[text] for text in params_texts])]
    for name, default in _usual(cells[0]).items():
        values: list[Scalar] = list(map(attrgetter(name), cells))
        pair_by_value = {value: _named(name, value, default) for value in set(values)}
        texts = {value: _assignments([pair]) if pair else "" for value, pair in pair_by_value.items()}
        if any(texts.values()):
            pair = pair_by_value[values[0]] if len(pair_by_value) == 1 else None
            columns.append(_Column(name, [texts[value] for value in values], pair[1] if pair else None))
    return columns


def _usual(settings: Settings) -> dict[str, Scalar | None]:
    """Return the default of each setting that a cell's text names if it differs; None: the text names any value."""
    is_task = settings.workload.startswith(PREFIX)
    usual = {name: SETTINGS[name].default for name in (OF_COMMANDS if is_task else SETTINGS)}
    if not is_task:
        entry = catalog.load().workloads.get(settings.workload)
        usual["samples"] = entry.samples if entry else catalog.USER_SAMPLES
    return {name: None if name in settings.set_by_matrix.split(",") else value for name, value in usual.items()}


def _named(name: str, value: Scalar, default: Scalar | None) -> tuple[str, Scalar] | None:
    """Return a setting with the value that is written for it, None for the default."""
    if name == "batch_size" and value == TO_BE_FOUND:
        value = LARGEST
    return None if _equal(value, default) else (name, value)


def _named_params(settings: Settings) -> list[tuple[str, Scalar]]:
    """Return by key the parameters of a cell that are not the default, and an FC mode in any case."""
    defaults, is_task = _default_params().get(settings.workload, {}), settings.workload.startswith(PREFIX)
    return [
        (parameter_key(name), value)
        for name, value in settings.params.items()
        if not (is_task and name == DEFINITION)
        and (name == "mode" or name not in defaults or not _equal(defaults[name], value))
    ]


def _assignments(pairs: Iterable[tuple[str, Scalar]]) -> str:
    return "".join(f" {assignment(key, value)}" for key, value in pairs)


def _equal(value: Scalar | None, other: Scalar | None) -> bool:
    """Return whether two values are the same JSON: 1, 1.0, true and "1" are four values."""
    return repr(value) == repr(other)


def work(settings: Settings) -> str:
    """Return a cell's workload; of the FC network its mode and workers, `fc_data workers=2`; `layer Conv2D`."""
    if (kind := KIND_OF_PART.get(settings.workload)) is not None:
        return f"{kind} {settings.params.get(kind, '')}"
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
