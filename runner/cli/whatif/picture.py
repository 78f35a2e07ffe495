"""A picture of a replayed step under the measured one, as SVG: a row per lane, a rectangle per operation.

Promise: pure; the same graph and schedule give the same text. Operations that are narrower than a pixel are merged with
their neighbours of the same colour. Waits are not drawn.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from keras_matrix.analysis.whatif.engine import Schedule
from keras_matrix.analysis.whatif.graph import Graph, Node, NodeKind

WIDTH, LABEL, ROW, GAP, TOP = 960, 190, 16, 3, 34
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

Lane = tuple[int, str]


@dataclass(frozen=True, slots=True)
class Bar:
    """An operation in a row: its begin and end in nanoseconds from the begin of the step."""

    begin_ns: float
    end_ns: float
    colour: str
    name: str


def svg(graph: Graph, schedule: Schedule, title: str, step: int = -1) -> str:
    """Return the picture of one measured step (by default the last) and of the replayed one."""
    measured, replayed = _measured(graph, step), _replayed(graph, schedule)
    lanes = _lanes(graph)
    span_ns = max(bar.end_ns for rows in (measured, replayed) for lane in lanes for bar in rows.get(lane, ()))
    panel = TOP + len(lanes) * (ROW + GAP)
    height = 2 * panel + 76
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'font-family="system-ui, sans-serif" font-size="12" role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    ends = graph.header.step_times_s[step] * 1e9, schedule.step_time_ns
    for number, (name, rows, end_ns) in enumerate((("measured", measured, ends[0]), ("replayed", replayed, ends[1]))):
        parts += _panel(f"{name}: {end_ns / 1e6:.1f} ms", rows, lanes, (number * panel, span_ns), end_ns)
    parts += [*_axis(2 * panel + 10, span_ns), *_legend(2 * panel + 56, graph), "</svg>", ""]
    return "\n".join(parts)


def _measured(graph: Graph, step: int) -> dict[Lane, list[Bar]]:
    def times(node: Node) -> tuple[float, float]:
        begin = node.starts_ns[step]
        return begin, begin + node.durations_ns[step]

    drawn = [node for node in graph.nodes if len(node.starts_ns) >= abs(step) and len(node.durations_ns) >= abs(step)]
    return _rows(drawn, [times(node) for node in drawn])


def _replayed(graph: Graph, schedule: Schedule) -> dict[Lane, list[Bar]]:
    begin = schedule.begin_ns
    times = [(s - begin, e - begin) for s, e in zip(schedule.starts_ns, schedule.ends_ns, strict=True)]
    return _rows(graph.nodes, times)


def _rows(nodes: Sequence[Node], times: Sequence[tuple[float, float]]) -> dict[Lane, list[Bar]]:
    found: dict[Lane, list[Bar]] = defaultdict(list)
    for node, (begin, end) in zip(nodes, times, strict=True):
        if node.kind is not NodeKind.WAIT and end > begin:
            found[node.rank, node.lane].append(Bar(begin, end, _colour(node), node.name))
    return found


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
    title: str, rows: Mapping[Lane, Sequence[Bar]], lanes: Sequence[Lane], at: tuple[int, float], end_ns: float
) -> Iterator[str]:
    top, span_ns = at
    yield f'<text x="8" y="{top + 22}" font-weight="600" fill="#1a1a1a">{escape(title)}</text>'
    for number, lane in enumerate(lanes):
        y = top + TOP + number * (ROW + GAP)
        label = f"rank {lane[0]}: {lane[1]}"
        short = label if len(label) <= 28 else label[:27] + "…"
        yield f'<text x="8" y="{y + 12}" fill="#404040">{escape(short)}</text>'
        yield f'<rect x="{LABEL}" y="{y}" width="{WIDTH - LABEL - 10}" height="{ROW}" fill="#f2f2f2"/>'
        for bar in _merged(rows.get(lane, ()), span_ns):
            x, width = _x(bar.begin_ns, span_ns), max(0.5, _x(bar.end_ns, span_ns) - _x(bar.begin_ns, span_ns))
            name = escape(f"{bar.name}, {(bar.end_ns - bar.begin_ns) / 1e6:.2f} ms")
            yield (
                f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{ROW}" fill="{COLOURS[bar.colour]}">'
                f"<title>{name}</title></rect>"
            )
    x, bottom = _x(end_ns, span_ns), top + TOP + len(lanes) * (ROW + GAP)
    ends = f'x1="{x:.1f}" y1="{top + TOP - 4}" x2="{x:.1f}" y2="{bottom}"'
    yield f'<line {ends} stroke="#1a1a1a" stroke-dasharray="3 2"/>'


def _merged(bars: Iterable[Bar], span_ns: float) -> Iterator[Bar]:
    """Yield the bars, those of one colour that less than a pixel separates as one."""
    pixel_ns = LEAST_PX * span_ns / (WIDTH - LABEL - 10)
    last: Bar | None = None
    count = 1
    for bar in sorted(bars, key=lambda one: one.begin_ns):
        narrow = last is not None and min(bar.end_ns - bar.begin_ns, last.end_ns - last.begin_ns) < pixel_ns
        if last is not None and narrow and bar.colour == last.colour and bar.begin_ns - last.end_ns < pixel_ns:
            count += 1
            last = Bar(last.begin_ns, max(last.end_ns, bar.end_ns), last.colour, f"{count} operations")
            continue
        if last is not None:
            yield last
        last, count = bar, 1
    if last is not None:
        yield last


def _x(at_ns: float, span_ns: float) -> float:
    return LABEL + (WIDTH - LABEL - 10) * at_ns / span_ns


def _axis(y: int, span_ns: float) -> Iterator[str]:
    """Yield the axis in milliseconds, with about eight ticks."""
    span_ms = span_ns / 1e6
    size = 10 ** math.floor(math.log10(span_ms / 8))
    step = next(factor * size for factor in (1, 2, 5, 10) if span_ms / (factor * size) <= 8)
    for number in range(int(span_ms / step) + 1):
        x = _x(number * step * 1e6, span_ns)
        yield f'<line x1="{x:.1f}" y1="{y}" x2="{x:.1f}" y2="{y + 5}" stroke="#404040"/>'
        yield f'<text x="{x:.1f}" y="{y + 18}" text-anchor="middle" fill="#404040">{number * step:g}</text>'
    yield f'<text x="{WIDTH - 10}" y="{y + 33}" text-anchor="end" fill="#404040">ms from the begin of the step</text>'


def _legend(y: int, graph: Graph) -> Iterator[str]:
    used = {_colour(node) for node in graph.nodes if node.kind is not NodeKind.WAIT}
    for number, name in enumerate(one for one in COLOURS if one in used):
        x = LABEL + number * 120
        yield f'<rect x="{x}" y="{y}" width="12" height="12" fill="{COLOURS[name]}"/>'
        yield f'<text x="{x + 17}" y="{y + 10}" fill="#404040">{name}</text>'
