"""Pictures of the FC modes: gain by workers, data against model parallelism, and the time of a step.

Pure functions. Only measured values are drawn, and an empty picture is left out; pictures beyond those that a page
shows are counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from keras_matrix.analysis.comparison.titles import differences
from keras_matrix.analysis.fc import DataVersusModel, FcFigure, data_versus_model
from keras_matrix.analysis.views.result_table import ResultTable
from keras_matrix.dashboards.charts import axes
from keras_matrix.dashboards.charts.axes import Axis
from keras_matrix.dashboards.charts.dot_plots import Strip, StripPicture, bar_part, strip_picture
from keras_matrix.dashboards.charts.picture import TO_MIDDLE, Area, Mark, PanelPicture, Picture, Segment, Word, slot_of
from keras_matrix.dashboards.charts.scaling import LEFT, NO_GAIN, Gains, most, panel
from keras_matrix.records.codec import canonical
from keras_matrix.records.fc.communication import TimingMethod
from keras_matrix.records.fc.spec import LOCAL, MODES, FcProblem
from keras_matrix.records.text import interval, plural, quantity, ratio_text, unit_for

SQUARE = 46  # the height of a row of the grid
MANY_COLUMNS = 6
FULL_AT = 4.0  # ratio from which on a field has its full colour
FAINTEST, FULLEST = 0.12, 0.5
BAR_HEIGHT = 22
METHODS = {TimingMethod.TIMED: "each collective timed", TimingMethod.PROFILED: "by the profiler"}

Thing = TypeVar("Thing")


@dataclass(frozen=True, slots=True)
class ParallelPictures:
    """All pictures of a run's FC cells; `left_out` counts those that are not drawn."""

    scaling: list[PanelPicture]
    grids: list[PanelPicture]
    steps: list[StripPicture]
    left_out: list[str]

    @property
    def any(self) -> bool:
        """Whether there is any picture."""
        return bool(self.scaling or self.grids or self.steps)


def pictures(table: ResultTable) -> ParallelPictures:
    """Return the pictures of a run's table; empty without cells of the FC modes."""
    cells = {view.cell.cell_id: view.cell for view in table.cells}
    figures = sorted(table.parallel, key=_order)
    spent, left_out = [figure for figure in figures if figure.spent], list[str]()
    return ParallelPictures(
        most(_panels(_gaining(figures)), "scaling", left_out),
        most(_grids(_paired(data_versus_model(figures, cells))), "crossing", left_out),
        most([_step(group) for group in _grouped(spent, lambda f: size_of(f.task))], "time", left_out),
        left_out,
    )


def _order(figure: FcFigure) -> tuple[int, ...]:
    task = figure.task
    return task.level, task.weight_size, task.batch_size, *_kind_order(figure)


def _kind_order(figure: FcFigure) -> tuple[int, int, int]:
    return list(MODES).index(figure.task.mode), figure.task.workers, slot_of(figure.settings.backend)


def _grouped(members: Iterable[Thing], key: Callable[[Thing], str]) -> list[list[Thing]]:
    groups: dict[str, list[Thing]] = {}
    for member in members:
        groups.setdefault(key(member), []).append(member)
    return list(groups.values())


def size_of(task: FcProblem) -> str:
    """Return the sizes of a task as text."""
    text = f"{task.level} layers of {task.weight_size}, batch {task.batch_size}, {task.precision}"
    return text + _network(task)


def _network(task: FcProblem) -> str:
    return "" if task.network == LOCAL else f", links of {task.network}"


# Gain by workers.


def _gaining(figures: Sequence[FcFigure]) -> list[list[FcFigure]]:
    """Return the figures of each work that some backend ran with one and with several workers."""
    groups = _grouped(figures, lambda f: canonical(replace(f.settings, backend="", params=_without(f, "workers"))))
    return [group for group in groups if any(figure.efficiency for figure in group)]


def _without(figure: FcFigure, *names: str) -> dict[str, bool | int | float | str]:
    return {name: value for name, value in figure.settings.params.items() if name not in names}


def _panels(groups: Sequence[Sequence[FcFigure]]) -> list[PanelPicture]:
    """Return a panel for each work; those of one mode and size name what else differs."""
    texts = [f"{group[0].task.mode}, {size_of(group[0].task)}" for group in groups]
    works = [replace(group[0].settings, params=_without(group[0], "workers")) for group in groups]
    return [_panel(group, difference) for group, difference in zip(groups, differences(texts, works), strict=True)]


def _panel(group: Sequence[FcFigure], difference: str) -> PanelPicture:
    task = group[0].task
    backend_by_slot = {slot_of(f.settings.backend): f.settings.backend for f in group if f.efficiency}
    gains = {backend: _gains(group, backend) for _, backend in sorted(backend_by_slot.items())}
    return panel(task.mode, _joined(size_of(task), difference), gains, "worker")


def _joined(*texts: str) -> str:
    return ", ".join(text for text in texts if text)


def _gains(group: Sequence[FcFigure], backend: str) -> Gains:
    """Return a backend's throughput by workers as a multiple of that of one worker, with the ends of its interval."""
    points = dict(NO_GAIN)
    for figure in group:
        if figure.settings.backend == backend and (efficiency := figure.efficiency):
            n = figure.task.workers
            points[n] = (
                efficiency.centre * n,
                efficiency.low and efficiency.low * n,
                efficiency.high and efficiency.high * n,
            )
    return dict(sorted(points.items()))


# Data against model parallelism.


def _paired(pairs: Sequence[DataVersusModel]) -> list[list[DataVersusModel]]:
    """Return groups of pairs that differ only in their sizes."""

    def key(pair: DataVersusModel) -> str:
        params = _without(pair.data, "weight_size")
        return canonical(replace(pair.data.settings, batch_size=1, samples=1, params=params))

    return sorted(_grouped(pairs, key), key=lambda group: _kind_order(group[0].data))


def _grids(groups: Sequence[Sequence[DataVersusModel]]) -> list[PanelPicture]:
    """Return a grid for each group; those of one title name what else differs."""
    plain_grids = [_grid(group) for group in groups]
    first_pairs = [group[0].data for group in groups]
    works = [
        replace(pair.settings, batch_size=1, samples=1, params=_without(pair, "weight_size")) for pair in first_pairs
    ]
    differing = differences([f"{plain_grid.title}, {plain_grid.details}" for plain_grid in plain_grids], works)
    return [
        replace(plain_grid, details=_joined(plain_grid.details, difference))
        for plain_grid, difference in zip(plain_grids, differing, strict=True)
    ]


def _grid(group: Sequence[DataVersusModel]) -> PanelPicture:
    """Return which mode is faster by weight size (vertical) and batch size (horizontal)."""
    task, backend = group[0].data.task, group[0].data.settings.backend
    batches = sorted({pair.data.task.batch_size for pair in group})
    sizes = sorted({pair.data.task.weight_size for pair in group}, reverse=True)
    fields = {(sizes.index(d.data.task.weight_size), batches.index(d.data.task.batch_size)): d for d in group}
    width, bottom = (100 - LEFT) / len(batches), SQUARE * len(sizes)
    title = f"{task.mode} against {group[0].model.task.mode}"
    details = f"{backend}, {plural(task.workers, 'worker')}, {task.level} layers, {task.precision}"
    picture = Picture(bottom + 26, summary=f"{title} on {backend}: " + "; ".join(_tip(pair) for pair in group))
    for row, size in enumerate(sizes):
        picture.axes.append(Word(f"{LEFT}%", SQUARE * (row + 0.5) + TO_MIDDLE, str(size), anchor="end", dx=-6))
    for column, batch in enumerate(batches):
        place = f"{LEFT + width * (column + 0.5):.2f}%"
        picture.axes.append(Word(place, bottom + 12 + TO_MIDDLE, str(batch), anchor="middle"))
    for field, pair in sorted(fields.items()):
        picture.marks.extend(_field(field, pair, (width, len(batches))))
    picture.marks.extend(_crossings(fields, width))
    return PanelPicture(title, details + _network(task), picture, wide=len(batches) > MANY_COLUMNS)


def _field(field: tuple[int, int], pair: DataVersusModel, columns: tuple[float, int]) -> list[Mark]:
    """Return a field in the colour of the faster mode, and how many times faster that is."""
    (row, column), (width, count), (kind, times, _) = field, columns, _faster(pair)
    strength, has_many_columns = min(1.0, math.log(times) / math.log(FULL_AT)), count > MANY_COLUMNS
    left, top = LEFT + width * column, SQUARE * row
    opacity = f"{FAINTEST + strength * (FULLEST - FAINTEST):.2f}"
    area = Area(f"{left:.2f}%", top, f"{width:.2f}%", SQUARE, f"field {kind}", tip=_tip(pair), opacity=opacity)
    text = f"{times:.{0 if times >= 9.95 else 1}f}" if has_many_columns else ratio_text(times)
    middle, role = f"{left + width / 2:.2f}%", "times settled" if pair.settled else "times"
    words = [Word(middle, top + (27 if has_many_columns else 20), text, role, "middle")]
    return [area, *words, *([] if has_many_columns else [Word(middle, top + 36, kind, "times", "middle")])]


def _faster(pair: DataVersusModel) -> tuple[str, float, str]:
    """Return the faster kind of parallelism, how many times faster it is, and the interval as text."""
    centre, low, high = pair.ratio.centre, pair.ratio.low, pair.ratio.high
    if centre >= 1:
        return "data", centre, interval(low, high, centre) or "no interval"
    ends = interval(1 / high, 1 / low, 1 / centre) if low and high else None
    return "model", 1 / centre, ends or "no interval"


def _tip(pair: DataVersusModel) -> str:
    task, (kind, ratio, ends) = pair.data.task, _faster(pair)
    return f"weight size {task.weight_size}, batch {task.batch_size}: {kind} is {ratio_text(ratio)} faster, {ends}"


def _crossings(fields: Mapping[tuple[int, int], DataVersusModel], width: float) -> list[Segment]:
    """Return the borders between adjacent fields in which different modes are faster."""
    crossings = []
    for (row, column), pair in fields.items():
        left, top = LEFT + width * column, float(SQUARE * row)
        right, bottom = f"{left + width:.2f}%", top + SQUARE
        right_pair, pair_below = fields.get((row, column + 1)), fields.get((row + 1, column))
        if right_pair and _faster(pair)[0] != _faster(right_pair)[0]:
            crossings.append(Segment(right, top, right, bottom, "crossing"))
        if pair_below and _faster(pair)[0] != _faster(pair_below)[0]:
            crossings.append(Segment(f"{left:.2f}%", bottom, right, bottom, "crossing"))
    return crossings


# The time of a step.


def _step(group: Sequence[FcFigure]) -> StripPicture:
    """Return the parts of a step of each cell of one size: computing, communication, and the end of the timed step."""
    times = [seconds for f in group if f.spent for seconds in (f.spent.step_time_s, f.step_time_s)]
    unit = unit_for(times)
    axis = axes.from_zero(times, f"time of a step, {unit.name}", unit)
    ordered = sorted(group, key=_kind_order)
    names = [f"{figure.task.mode} ×{figure.task.workers}" for figure in ordered]
    texts = [f"{name} on {figure.settings.backend}" for name, figure in zip(names, ordered, strict=True)]
    differing = differences(texts, [figure.settings for figure in ordered])
    named_figures = zip(ordered, map(_joined, names, differing), strict=True)
    return StripPicture(size_of(group[0].task), "", axis, [_bar(figure, name, axis) for figure, name in named_figures])


def _bar(figure: FcFigure, name: str, axis: Axis) -> Strip:
    spent, backend = figure.spent, figure.settings.backend
    assert spent is not None
    communicating = min(1.0, max(0.0, spent.share))
    start, end = axis.share(0.0), axis.share(spent.step_time_s)
    middle = axis.share(spent.step_time_s * (1 - communicating))
    note = f"{spent.share_text} communication"
    step_text, time_place = quantity(figure.step_time_s, axis.unit), axis.place(figure.step_time_s)
    summary = f"{name} on {backend}: {note} ({METHODS[spent.method]}); {step_text} a timed step"
    marks: list[Mark] = [
        bar_part(start, middle, BAR_HEIGHT, "compute"),
        bar_part(middle, end, BAR_HEIGHT, "exchange"),
        Segment(time_place, 1, time_place, BAR_HEIGHT - 1, "median"),
    ]
    return Strip(name, step_text, [note], strip_picture(slot_of(backend), BAR_HEIGHT, summary, marks))
