"""A picture of a replayed step under the measured one, as an SVG file: a row per lane, a rectangle per operation.

Promise: pure; the same graph and schedule give the same text. Operations that are narrower than a pixel are merged with
their neighbours of the same colour. Waits are not drawn.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from keras_matrix.analysis.whatif.engine import Schedule
from keras_matrix.analysis.whatif.graph import Graph, Node, NodeKind
from keras_matrix.dashboards.charts.picture import Area, Mark, Picture, Segment, Word, document

WIDTH, LABEL, RIGHT, ROW, GAP, TOP = 960, 190, 10, 16, 3, 34
LEAST_PX = 1.0
MOST_LANES = 16
# Colours that colour-blind readers can tell apart (Okabe and Ito).
COLOURS = {
    "forward": "#56b4e9",
    "backward": "#0072b2",
    "communication": "#d55e00",
    "update": "#009e73",
    "input": "#cc79a7",
    "other": "#8c8c8c",
}
STYLE = """
svg { font-family: system-ui, sans-serif; font-size: 12px; } .paper { fill: #ffffff; } .lane { fill: #f2f2f2; }
text { fill: #404040; } .name { fill: #1a1a1a; font-weight: 600; } .tick { stroke: #404040; }
.end { stroke: #1a1a1a; stroke-dasharray: 3 2; }
""" + "\n".join(f".{name} {{ fill: {colour}; }}" for name, colour in COLOURS.items())

Lane = tuple[int, str]


@dataclass(frozen=True, slots=True)
class OperationBar:
    """An operation in a row: its begin and end in nanoseconds from the begin of the step."""

    begin_ns: float
    end_ns: float
    colour: str
    name: str


@dataclass(frozen=True, slots=True)
class Scale:
    """The time that is drawn, in nanoseconds from the begin of the step."""

    begin_ns: float
    end_ns: float

    @property
    def pixel_ns(self) -> float:
        """The time of a pixel."""
        return (self.end_ns - self.begin_ns) / (WIDTH - LABEL - RIGHT)

    def x(self, at_ns: float) -> float:
        """Return the place of a time."""
        return LABEL + (at_ns - self.begin_ns) / self.pixel_ns


def svg(graph: Graph, schedule: Schedule, title: str, step: int = -1) -> str:
    """Return the picture of one measured step (by default the last) and of the replayed one."""
    panels = {"measured": _measured(graph, step), "replayed": _replayed(graph, schedule)}
    lanes = _lanes(graph)
    bars = [bar for rows in panels.values() for lane in lanes for bar in rows.get(lane, ())]
    # A rank may begin its step before the slowest one has ended the step before.
    scale = Scale(min(0.0, *(bar.begin_ns for bar in bars)), max(bar.end_ns for bar in bars))
    panel = TOP + len(lanes) * (ROW + GAP)
    picture = Picture(2 * panel + 76, title=title, role="", width=WIDTH)
    ends = graph.header.step_times_s[step] * 1e9, schedule.step_time_ns
    for number, (name, end_ns) in enumerate(zip(panels, ends, strict=True)):
        top, x = number * panel, round(scale.x(end_ns), 1)
        picture.marks.append(Word(8, top + 22, f"{name}: {end_ns / 1e6:.1f} ms", "name"))
        picture.marks.extend(_panel(panels[name], lanes, top, scale))
        picture.marks.append(Segment(x, top + TOP - 4, x, top + panel, "end"))
    picture.marks.extend([*_axis(2 * panel + 10, scale), *_legend(2 * panel + 56, graph)])
    return document(picture, STYLE) + "\n"


def _measured(graph: Graph, step: int) -> dict[Lane, list[OperationBar]]:
    def times(node: Node) -> tuple[float, float]:
        begin = node.starts_ns[step]
        return begin, begin + node.durations_ns[step]

    drawn_nodes = [
        node for node in graph.nodes if len(node.starts_ns) >= abs(step) and len(node.durations_ns) >= abs(step)
    ]
    return _rows(drawn_nodes, [times(node) for node in drawn_nodes])


def _replayed(graph: Graph, schedule: Schedule) -> dict[Lane, list[OperationBar]]:
    begin = schedule.begin_ns
    times = [(s - begin, e - begin) for s, e in zip(schedule.starts_ns, schedule.ends_ns, strict=True)]
    return _rows(graph.nodes, times)


def _rows(nodes: Sequence[Node], times: Sequence[tuple[float, float]]) -> dict[Lane, list[OperationBar]]:
    bars_by_lane: dict[Lane, list[OperationBar]] = defaultdict(list)
    for node, (begin, end) in zip(nodes, times, strict=True):
        if node.kind is not NodeKind.WAIT and end > begin:
            bars_by_lane[node.rank, node.lane].append(OperationBar(begin, end, _colour(node), node.name))
    return bars_by_lane


def _colour(node: Node) -> str:
    if node.kind is NodeKind.COMMUNICATION:
        return "communication"
    return str(node.phase) if node.phase in COLOURS else "input" if node.kind is NodeKind.INPUT else "other"


def _lanes(graph: Graph) -> list[Lane]:
    """Return the lanes that are drawn: those with the most work, in the order of ranks and first operations."""
    work: dict[Lane, float] = defaultdict(float)
    for node in graph.nodes:
        if node.kind is not NodeKind.WAIT:
            work[node.rank, node.lane] += node.duration_ns
    busiest = set(sorted(work, key=lambda lane: -work[lane])[:MOST_LANES])
    return sorted((lane for lane in work if lane in busiest), key=lambda lane: lane[0])


def _panel(
    rows: Mapping[Lane, Sequence[OperationBar]], lanes: Sequence[Lane], top: int, scale: Scale
) -> Iterator[Mark]:
    for number, lane in enumerate(lanes):
        y = top + TOP + number * (ROW + GAP)
        label = f"rank {lane[0]}: {lane[1]}"
        yield Word(8, y + 12, label if len(label) <= 28 else label[:27] + "…")
        yield Area(LABEL, y, WIDTH - LABEL - RIGHT, ROW, "lane")
        levels = _levels(list(_merged(rows.get(lane, ()), scale)))
        height = ROW / max(1, len(levels))
        for level, bars in enumerate(levels):
            for bar in bars:
                x, width = scale.x(bar.begin_ns), max(0.5, scale.x(bar.end_ns) - scale.x(bar.begin_ns))
                sides = round(x, 1), round(y + level * height, 1), round(width, 1), round(height, 1)
                yield Area(*sides, bar.colour, tip=f"{bar.name}, {(bar.end_ns - bar.begin_ns) / 1e6:.2f} ms")


def _levels(bars: Sequence[OperationBar]) -> list[list[OperationBar]]:
    """Return the bars of a row in as many levels as overlap: a lane may run several operations at a time."""
    levels: list[list[OperationBar]] = []
    for bar in bars:
        free_level = next((level for level in levels if level[-1].end_ns <= bar.begin_ns + 1), None)
        if free_level is None:
            levels.append([bar])
        else:
            free_level.append(bar)
    return levels


def _merged(bars: Iterable[OperationBar], scale: Scale) -> Iterator[OperationBar]:
    """Yield the bars, those of one colour that less than a pixel separates as one."""
    pixel_ns = LEAST_PX * scale.pixel_ns
    last_bar: OperationBar | None = None
    count = 1
    for bar in sorted(bars, key=lambda bar: bar.begin_ns):
        is_narrow = (
            last_bar is not None and min(bar.end_ns - bar.begin_ns, last_bar.end_ns - last_bar.begin_ns) < pixel_ns
        )
        if (
            last_bar is not None
            and is_narrow
            and bar.colour == last_bar.colour
            and bar.begin_ns - last_bar.end_ns < pixel_ns
        ):
            count += 1
            last_bar = OperationBar(
                last_bar.begin_ns, max(last_bar.end_ns, bar.end_ns), last_bar.colour, f"{count} operations"
            )
            continue
        if last_bar is not None:
            yield last_bar
        last_bar, count = bar, 1
    if last_bar is not None:
        yield last_bar


def _axis(y: int, scale: Scale) -> Iterator[Mark]:
    """Yield the axis in milliseconds, with about eight ticks."""
    span_ms = scale.end_ns / 1e6
    power_of_ten = 10 ** math.floor(math.log10(span_ms / 8))
    step = next(factor * power_of_ten for factor in (1, 2, 5, 10) if span_ms / (factor * power_of_ten) <= 8)
    for number in range(int(span_ms / step) + 1):
        x = round(scale.x(number * step * 1e6), 1)
        yield Segment(x, y, x, y + 5, "tick")
        yield Word(x, y + 18, f"{number * step:g}", anchor="middle")
    yield Word(WIDTH - RIGHT, y + 33, "ms from the begin of the step", anchor="end")


def _legend(y: int, graph: Graph) -> Iterator[Mark]:
    used_colours = {_colour(node) for node in graph.nodes if node.kind is not NodeKind.WAIT}
    for number, name in enumerate(colour for colour in COLOURS if colour in used_colours):
        x = LABEL + number * 120
        yield Area(x, y, 12, 12, name)
        yield Word(x + 17, y + 10, name)
