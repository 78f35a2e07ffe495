"""The roofline as a picture: what a run's cells reach, under the roofs of their machine.

Both axes are logarithmic: FLOPs per byte across, FLOP/s up. A roof is a measured peak, flat where products bound a cell
and sloped where memory does; each point is a cell. Every roof and every piece of work is labelled where it stands; what
finds no free place is in the table only. Pure, and knows nothing of markup: `dashboards.report.roofline_page` writes
it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from keras_matrix.analysis.hardware.roofline import PeakShare, Product, Roofline, Slope
from keras_matrix.dashboards.charts import axes, label_layout
from keras_matrix.dashboards.charts.axes import Axis
from keras_matrix.dashboards.charts.dot_plots import slot_of
from keras_matrix.dashboards.charts.format import DASH, Unit, number, plural, quantity, share, unit_for
from keras_matrix.dashboards.charts.label_layout import Box, Spot

RATE_UNITS = (
    Unit("PFLOP/s", 1e15),
    Unit("TFLOP/s", 1e12),
    Unit("GFLOP/s", 1e9),
    Unit("MFLOP/s", 1e6),
    Unit("kFLOP/s", 1e3),
)
BANDWIDTH_UNITS = (Unit("TB/s", 1e12), Unit("GB/s", 1e9), Unit("MB/s", 1e6))
INTENSITY = Unit("FLOP/byte", 1.0)
LEFT, RIGHT, TOP, BOTTOM = 62.0, 14.0, 46.0, 48.0
DOT = 6.0
CAP = 8.0
MOST_NAMED = 100  # works: finding places for more takes seconds, and finds few
# A picture this narrow tells a roof without its backend, and a work in fewer letters; both are in the tables.
NARROW_BELOW = 600.0
LONGEST_LABEL, LONGEST_NARROW_LABEL = 34, 24
LINE = 15.0
# As much room above the highest roof as its label needs, and beside the ridge for the flat part to be seen.
HEADROOM = 2.2
PAST_RIDGE = 6.0


@dataclass(frozen=True, slots=True)
class Size:
    """Of a picture, in its own units: CSS pixels where it has room."""

    width: float
    height: float


WIDE = Size(1000.0, 560.0)
NARROW = Size(420.0, 520.0)


@dataclass(frozen=True, slots=True)
class Line:
    """A straight line; `kind` is its class in the style sheet."""

    kind: str
    x1: float
    y1: float
    x2: float
    y2: float
    tip: str = ""


@dataclass(frozen=True, slots=True)
class Dot:
    """A cell."""

    x: float
    y: float
    slot: int
    tip: str


@dataclass(frozen=True, slots=True)
class Label:
    """Text at a spot; `kind` is its class in the style sheet."""

    kind: str
    spot: Spot
    text: str
    tip: str = ""


@dataclass(frozen=True, slots=True)
class Drawing:
    """One picture, ready to be written as SVG."""

    size: Size
    title: str
    summary: str
    lines: tuple[Line, ...]
    dots: tuple[Dot, ...]
    labels: tuple[Label, ...]


@dataclass(frozen=True, slots=True)
class Point:
    """A cell: its rate and intensity. Its roof is drawn above it; None in pictures that draw the machine's roofs."""

    title: str
    backend: str
    flop_per_s: float
    flop_per_byte: float
    tip: str
    roof_flop_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class Scene:
    """What one picture shows: cells, and of a run the roofs of one device and one number of CPUs."""

    title: str
    roofs: tuple[Product, ...]
    slope: Slope | None
    points: tuple[Point, ...]


def scenes(found: Roofline) -> list[Scene]:
    """Return a scene for each device and number of CPUs that cells ran on; without cells, that of the most CPUs."""
    places = [s.place for s in found.shares if s.place] or [roof.place for roof in found.roofs[:1]]
    keys = {(place.device, place.threads if place.device == "cpu" else 0) for place in places}
    return [scene for device, threads in sorted(keys) if (scene := _scene(found, device, threads)).roofs]


def draw(scene: Scene, size: Size = WIDE) -> Drawing:
    """Lay out one picture."""
    return _Layout(scene, size).drawing()


def _scene(found: Roofline, device: str, threads: int) -> Scene:
    def here(that_device: str, that_threads: int) -> bool:
        return that_device == device and (device != "cpu" or that_threads == threads)

    return Scene(
        title=f"On {plural(threads, 'CPU')}" if device == "cpu" else f"On the {device.upper()}",
        roofs=tuple(r for r in found.roofs if here(r.place.device, r.place.threads)),
        slope=next((s for s in found.slopes if here(s.device, s.threads)), None),
        points=tuple(
            point
            for one in found.shares
            if one.place and here(one.place.device, one.place.threads) and (point := _point(one))
        ),
    )


def _point(one: PeakShare) -> Point | None:
    if not one.achieved_flop_per_s or not one.intensity_flop_per_byte:
        return None
    tip = (
        f"{one.title} on {one.backend}: {rate(one.achieved_flop_per_s)}, {share(one.share_of_peak)} of the peak, "
        f"at most {quantity(one.intensity_flop_per_byte, INTENSITY)}"
    )
    return Point(one.title, one.backend, one.achieved_flop_per_s, one.intensity_flop_per_byte, tip)


class _Layout:
    """From a scene's values to places in one picture."""

    def __init__(self, scene: Scene, size: Size) -> None:
        self._scene, self._size = scene, size
        self._shown = scene.points
        self._frame = Box(LEFT, TOP, size.width - RIGHT, size.height - BOTTOM)
        self._across, self._up = self._axes()

    def drawing(self) -> Drawing:
        """Return the picture: grid, roofs, points, then the words that find room."""
        dots = tuple(self._dot(s) for s in self._shown)
        grid, ticks = self._grid()
        roofs = [*self._roof_lines(), *self._own_roofs()]
        groups = self._groups()
        stems = [Line("stem", g[0].x, g[0].y, g[-1].x, g[-1].y) for _, g in groups if len(g) > 1]
        return Drawing(
            size=self._size,
            title=self._scene.title,
            summary=self._summary(),
            lines=(*grid, *stems, *roofs),
            dots=(*dots, *self._legend_dots()),
            labels=(*ticks, *self._legend(), *self._words(dots, [*stems, *roofs], groups)),
        )

    def _axes(self) -> tuple[Axis, Axis]:
        rates = [one.flop_per_s for one in self._shown]
        peaks = [roof.best_flop_per_s for roof in self._scene.roofs]
        peaks = peaks or [one.roof_flop_per_s or one.flop_per_s for one in self._shown]
        intensities = [one.flop_per_byte for one in self._shown]
        if self._scene.slope:
            ridges = [peak / self._scene.slope.best_byte_per_s for peak in peaks]
            intensities += [min(ridges) / PAST_RIDGE, max(ridges) * PAST_RIDGE]
        intensities = intensities or [1.0, 100.0]
        rates = [*(rate / 1.5 for rate in rates), min(peaks) / 10, max(peaks) * HEADROOM]
        unit = unit_for([max(peaks)], RATE_UNITS)
        return (
            axes.logarithmic(
                [min(intensities) / 1.5, max(intensities) * 1.5], "FLOPs per byte of memory traffic", INTENSITY
            ),
            axes.logarithmic(rates, unit.name, unit),
        )

    def _x(self, value: float) -> float:
        return self._frame.left + (self._frame.right - self._frame.left) * self._across.share(value) / 100

    def _y(self, value: float) -> float:
        return self._frame.bottom - (self._frame.bottom - self._frame.top) * self._up.share(value) / 100

    def _dot(self, one: Point) -> Dot:
        return Dot(self._x(one.flop_per_byte), self._y(one.flop_per_s), slot_of(one.backend), one.tip)

    def _grid(self) -> tuple[list[Line], list[Label]]:
        frame, lines, labels = self._frame, list[Line](), list[Label]()
        for tick in self._across.ticks():
            x = frame.left + (frame.right - frame.left) * float(tick.at.rstrip("%")) / 100
            lines.append(Line("rule", x, frame.top, x, frame.bottom))
            labels.append(Label("scale", Spot(x, frame.bottom + 17, "middle"), tick.label))
        for tick in self._up.ticks():
            y = frame.bottom - (frame.bottom - frame.top) * float(tick.at.rstrip("%")) / 100
            lines.append(Line("rule", frame.left, y, frame.right, y))
            labels.append(Label("scale", Spot(frame.left - 8, y + 4, "end"), tick.label))
        middle = (frame.left + frame.right) / 2
        labels.append(Label("scale", Spot(middle, frame.bottom + 38, "middle"), f"{self._across.title} (logarithmic)"))
        labels.append(Label("scale", Spot(4, 36), f"{self._up.title} (logarithmic)"))
        return lines, labels

    def _legend(self) -> list[Label]:
        return [Label("backend", Spot(dot.x + 10, 15), dot.tip) for dot in self._legend_dots()]

    def _legend_dots(self) -> list[Dot]:
        names = sorted({one.backend for one in self._shown}, key=slot_of)
        return [Dot(12.0 + 96 * place, 11.0, slot_of(name), name) for place, name in enumerate(names)]

    def _roof_lines(self) -> Iterator[Line]:
        slope = self._scene.slope
        for roof in self._scene.roofs:
            start = self._ridge(roof)
            y = self._y(roof.best_flop_per_s)
            yield Line("roof", start, y, self._frame.right, y, _roof_tip(roof))
        if slope is not None and self._scene.roofs:
            top = max(roof.best_flop_per_s for roof in self._scene.roofs)
            low = max(self._across.low, self._up.low / slope.best_byte_per_s)
            ridge = top / slope.best_byte_per_s
            foot = self._x(low), self._y(low * slope.best_byte_per_s)
            yield Line("roof", *foot, self._x(ridge), self._y(top), _slope_tip(slope))

    def _own_roofs(self) -> Iterator[Line]:
        for one in self._shown:
            if one.roof_flop_per_s:
                x, y, slot = self._x(one.flop_per_byte), self._y(one.roof_flop_per_s), slot_of(one.backend)
                yield Line(f"reach s{slot}", x, self._y(one.flop_per_s), x, y)
                yield Line(f"cap s{slot}", x - CAP, y, x + CAP, y, f"roof: {rate(one.roof_flop_per_s)}")

    def _ridge(self, roof: Product) -> float:
        slope = self._scene.slope
        return self._x(roof.best_flop_per_s / slope.best_byte_per_s) if slope else self._frame.left

    def _groups(self) -> list[tuple[Point, list[Dot]]]:
        """Return the points of each piece of work, from the highest down."""
        found: dict[str, list[tuple[Point, Dot]]] = {}
        for one in self._shown:
            found.setdefault(one.title, []).append((one, self._dot(one)))
        return [(pairs[0][0], sorted((dot for _, dot in pairs), key=lambda d: d.y)) for pairs in found.values()]

    def _words(
        self, dots: Sequence[Dot], lines: Sequence[Line], groups: Sequence[tuple[Point, list[Dot]]]
    ) -> list[Label]:
        taken = [Box(d.x - DOT, d.y - DOT, d.x + DOT, d.y + DOT) for d in dots]
        taken += [box for line in lines for box in _along(line)]
        narrow = self._size.width < NARROW_BELOW
        roofs = self._scene.roofs
        told = [self._few_words(roof) if narrow else _roof_text(roof) for roof in roofs]
        wishes = [(text, self._roof_spots(r), "peak", _roof_tip(r)) for text, r in zip(told, roofs, strict=True)]
        if self._scene.slope:
            text = f"memory {bandwidth(self._scene.slope.best_byte_per_s)}"
            wishes.append((text, self._slope_spots(), "peak", _slope_tip(self._scene.slope)))
        longest = LONGEST_NARROW_LABEL if narrow else LONGEST_LABEL
        short = _short_titles([one.title for one, _ in groups], longest)
        wishes += [(short[one.title], _run_context(group), "work", one.title) for one, group in groups[:MOST_NAMED]]
        spots = label_layout.place([(text, spots) for text, spots, _, _ in wishes], taken, self._frame)
        return [
            Label(kind, spot, text, tip)
            for (text, _, kind, tip), spot in zip(wishes, spots, strict=True)
            if spot is not None
        ]

    def _few_words(self, roof: Product) -> str:
        """The roof's rate in the unit of the axis, which need not be said again."""
        return f"{roof.place.precision} {number(roof.best_flop_per_s, self._up.unit.size)}"

    def _roof_spots(self, roof: Product) -> list[Spot]:
        """Above the roof from its end inwards, else below it."""
        y, start, end = self._y(roof.best_flop_per_s), self._ridge(roof), self._frame.right - 4
        steps = [end - k * (end - start) / 12 for k in range(11)]
        return [Spot(x, y + dy, "end") for dy in (-8.0, 17.0) for x in steps]

    def _slope_spots(self) -> list[Spot]:
        """Left of the slope, at several heights."""
        slope = self._scene.slope
        assert slope is not None
        top = min(roof.best_flop_per_s for roof in self._scene.roofs)
        heights = [top / factor for factor in (3.0, 2.0, 5.0, 8.0, 1.4, 12.0)]
        spots = [Spot(self._x(height / slope.best_byte_per_s) - 12, self._y(height), "end") for height in heights]
        return spots + [replace(s, x=s.x + 30, y=s.y + 12, anchor="start") for s in spots]

    def _summary(self) -> str:
        roofs = "; ".join(map(_roof_text, self._scene.roofs))
        if not roofs:
            return (
                f"{plural(len(self._shown), 'cell')}: achieved rate by intensity; a stroke leads up to the roof of each"
            )
        return f"{plural(len(self._shown), 'cell')} under {plural(len(self._scene.roofs), 'roof')}: {roofs}"


def _along(line: Line) -> Iterator[Box]:
    """Yield small boxes that cover a line."""
    count = max(1, int(max(abs(line.x2 - line.x1), abs(line.y2 - line.y1)) / 6))
    for step in range(count + 1):
        x = line.x1 + (line.x2 - line.x1) * step / count
        y = line.y1 + (line.y2 - line.y1) * step / count
        yield Box(x - 3, y - 2, x + 3, y + 2)


def _run_context(group: Sequence[Dot]) -> list[Spot]:
    """Return the places for a work's name: beside its points, above and below them, then further off."""
    spots = [spot for d in group for spot in (Spot(d.x + 10, d.y + 4), Spot(d.x - 10, d.y + 4, "end"))]
    spots += [Spot(group[0].x, group[0].y - 11, "middle"), Spot(group[-1].x, group[-1].y + 20, "middle")]
    for away in range(1, 5):
        for y in (group[-1].y + 4 + away * LINE, group[0].y + 4 - away * LINE):
            spots += [Spot(group[0].x + 10, y), Spot(group[0].x - 10, y, "end")]
    return spots


def _short_titles(titles: Sequence[str], longest: int) -> dict[str, str]:
    """Return what each work is called in the picture: its name, and what tells it from others of that name."""
    words = [title.split(" ") for title in titles]
    common = set.intersection(*map(set, words)) if words else set()
    found = {}
    for title, (name, *details) in zip(titles, words, strict=True):
        alone = sum(other[0] == name for other in words) == 1
        text = name if alone else " ".join([name, *(word for word in details if word not in common)])
        found[title] = text if len(text) <= longest else text[: longest - 1] + "…"
    return found


def rate(value: float | None) -> str:
    """Return FLOP/s in the unit that suits them, or a dash."""
    return DASH if value is None else quantity(value, unit_for([value], RATE_UNITS))


def bandwidth(value: float | None) -> str:
    """Return byte/s in the unit that suits them, or a dash."""
    return DASH if value is None else quantity(value, unit_for([value], BANDWIDTH_UNITS))


def _roof_text(roof: Product) -> str:
    return f"{roof.place.precision} {rate(roof.best_flop_per_s)}, {roof.backend}"


def _roof_tip(roof: Product) -> str:
    calls = f"{plural(roof.calls, 'call')} in {plural(roof.processes, 'process', 'processes')}"
    told = (
        f"{roof.place.precision} product of {roof.size} × {roof.size}, {roof.backend}: best "
        f"{rate(roof.best_flop_per_s)}, median {rate(roof.median_flop_per_s)} of {calls}"
    )
    return told if roof.datasheet_flop_per_s is None else f"{told}; stated {rate(roof.datasheet_flop_per_s)}"


def _slope_tip(slope: Slope) -> str:
    best, median, copy = map(bandwidth, (slope.best_byte_per_s, slope.median_byte_per_s, slope.copy_byte_per_s))
    return f"STREAM triad, {slope.by}: best {best}, median {median} of {plural(slope.calls, 'call')}; copy {copy}"
