"""The roofline as a picture: the rates that a run's cells reach, below the roofs of their machine.

Both axes are logarithmic: FLOPs per byte horizontally, FLOP/s vertically. A roof is a measured peak, flat where matrix
products limit a cell and sloped where memory does; each point is a cell. Roofs and pieces of work are labelled in the
picture; a label without free space is only in the table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from keras_matrix.analysis.roofline import MachinePeaks, PeakShare, Product, Roofline, Slope
from keras_matrix.dashboards.charts import axes
from keras_matrix.dashboards.charts.axes import Axis
from keras_matrix.dashboards.charts.picture import Dot, Mark, Picture, ScaledPicture, Segment, Word, slot_of
from keras_matrix.records.text import Unit, number, percentage, plural, quantity, unit_for

PREFIXES = {"P": 1e15, "T": 1e12, "G": 1e9, "M": 1e6, "k": 1e3}
RATE_UNITS = tuple(Unit(f"{prefix}FLOP/s", size) for prefix, size in PREFIXES.items())
BANDWIDTH_UNITS = (Unit("TB/s", 1e12), Unit("GB/s", 1e9), Unit("MB/s", 1e6))
INTENSITY = Unit("FLOP/byte", 1.0)
LEFT, RIGHT, TOP, BOTTOM = 62.0, 14.0, 46.0, 48.0
DOT = 6.0
CAP = 8.0
MOST_NAMED = 100  # pieces of work with a label: placing more takes seconds, and few find space
# Labels of narrower pictures have no backend for a roof and fewer letters for a work; the tables have both.
NARROW_BELOW = 600.0
LONGEST_LABEL, LONGEST_NARROW_LABEL = 34, 24
LINE = 15.0
# Space above the highest roof for its label, and next to the ridge so that the flat part is visible.
HEADROOM = 2.2
PAST_RIDGE = 6.0
WIDTH_PER_CHARACTER = 6.6  # of text 12 high in the sans-serif faces of our style sheet; measured 5.5 to 6.4
ASCENT = 10.0
DESCENT = 4.0
PADDING = 2.0


@dataclass(frozen=True, slots=True)
class PictureSize:
    """The size of a picture in its own units, which are CSS pixels if there is enough space."""

    width: float
    height: float


WIDE = PictureSize(1000.0, 560.0)
NARROW = PictureSize(420.0, 520.0)


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle."""

    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: Box) -> bool:
        """Return whether the two overlap."""
        is_beside = self.right <= other.left or other.right <= self.left
        return not (is_beside or self.bottom <= other.top or other.bottom <= self.top)

    def within(self, other: Box) -> bool:
        """Return whether it is completely inside another."""
        within_width = self.left >= other.left and self.right <= other.right
        return within_width and self.top >= other.top and self.bottom <= other.bottom


@dataclass(frozen=True, slots=True)
class Spot:
    """A position for a label: the start, middle or end of its baseline."""

    x: float
    y: float
    anchor: str = "start"

    def box(self, text: str) -> Box:
        """Return the rectangle that a label covers there."""
        width = len(text) * WIDTH_PER_CHARACTER
        left = self.x - {"start": 0.0, "middle": width / 2, "end": width}[self.anchor]
        return Box(left - PADDING, self.y - ASCENT - PADDING, left + width + PADDING, self.y + DESCENT + PADDING)


@dataclass(frozen=True, slots=True)
class RooflinePoint:
    """A cell: its rate, its intensity and its own roof; None in pictures with the roofs of the machine.

    Cells of one `work_id` are one piece of work, `title` is its title.
    """

    work_id: str
    title: str
    backend: str
    flop_per_s: float
    flop_per_byte: float
    tip: str
    roof_flop_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class Scene:
    """The content of one picture: cells, and for a run the roofs of one device and one number of CPUs."""

    title: str
    roofs: tuple[Product, ...]
    slope: Slope | None
    points: tuple[RooflinePoint, ...]


def scenes(roofline: Roofline) -> list[Scene]:
    """Return a scene per number of CPUs or accelerators of the cells; without cells, one for the most CPUs."""
    places = [(s.place, s.devices) for s in roofline.shares if s.place] or [
        (roof.place, 1) for roof in roofline.roofs[:1]
    ]
    keys = {(place.device, place.threads if place.device == "cpu" else devices) for place, devices in places}
    return [scene for device, count in sorted(keys) if (scene := _scene(roofline, device, count)).roofs]


def drawn(scene: Scene) -> ScaledPicture:
    """Return the picture of a scene."""
    return ScaledPicture(scene.title, draw(scene, WIDE), draw(scene, NARROW))


def draw(scene: Scene, size: PictureSize = WIDE) -> Picture:
    """Lay out one picture."""
    return _Layout(scene, size).picture()


def _scene(roofline: Roofline, device: str, count: int) -> Scene:
    """Return the scene of so many CPUs, or of so many accelerators together."""
    on_cpu = device == "cpu"
    peaks = MachinePeaks(roofline.roofs, roofline.slopes).together(1 if on_cpu else count)

    def here(that_device: str, that_threads: int) -> bool:
        return that_device == device and (not on_cpu or that_threads == count)

    one_device_text = f"On the {device.upper()}"
    all_devices_text = f"On {count} {device.upper()}s: the roofs are those of all together, {count} times one's"
    return Scene(
        title=f"On {plural(count, 'CPU')}" if on_cpu else one_device_text if count == 1 else all_devices_text,
        roofs=tuple(r for r in peaks.own if here(r.place.device, r.place.threads)),
        slope=next((s for s in peaks.slopes if here(s.device, s.threads)), None),
        points=tuple(
            point
            for share in roofline.shares
            if share.place
            and here(share.place.device, share.place.threads)
            and (on_cpu or share.devices == count)
            and (point := _point(share))
        ),
    )


def _point(share: PeakShare) -> RooflinePoint | None:
    if not share.achieved_flop_per_s or not share.intensity_flop_per_byte:
        return None
    tip = (
        f"{share.title} on {share.backend}: {rate(share.achieved_flop_per_s)}, {percentage(share.share_of_peak)} of "
        f"the peak, at most {quantity(share.intensity_flop_per_byte, INTENSITY)}"
    )
    return RooflinePoint(
        share.work_id, share.title, share.backend, share.achieved_flop_per_s, share.intensity_flop_per_byte, tip
    )


class _Layout:
    """Converts a scene's values to positions in one picture."""

    def __init__(self, scene: Scene, size: PictureSize) -> None:
        self._scene, self._size = scene, size
        self._shown = scene.points
        self._frame = Box(LEFT, TOP, size.width - RIGHT, size.height - BOTTOM)
        self._across, self._up = self._axes()

    def picture(self) -> Picture:
        """Return the picture: grid, roofs, points, then the labels that have space."""
        dots = [
            Dot(self._spot(point).x, self._spot(point).y, slot_of(point.backend), point.tip) for point in self._shown
        ]
        roofs, groups = [*self._roof_lines(), *self._own_roofs()], self._groups()
        stems = [Segment(g[0].x, g[0].y, g[-1].x, g[-1].y, "stem") for _, g in groups if len(g) > 1]
        return Picture(
            self._size.height,
            [*stems, *roofs, *dots, *self._legend(), *self._labels([*stems, *roofs], groups)],
            self._grid(),
            summary=f"{self._scene.title}: {self._summary()}",
            role=f"roofline {'narrow' if self._size.width < NARROW_BELOW else 'wide'}",
            width=self._size.width,
        )

    def _axes(self) -> tuple[Axis, Axis]:
        rates = [point.flop_per_s for point in self._shown]
        peaks = [roof.best_flop_per_s for roof in self._scene.roofs]
        peaks = peaks or [point.roof_flop_per_s or point.flop_per_s for point in self._shown]
        intensities = [point.flop_per_byte for point in self._shown]
        if self._scene.slope:
            ridges = [peak / self._scene.slope.best_byte_per_s for peak in peaks]
            intensities += [min(ridges) / PAST_RIDGE, max(ridges) * PAST_RIDGE]
        intensities = intensities or [1.0, 100.0]
        ends = [min(intensities) / 1.5, max(intensities) * 1.5]
        rates = [*(rate / 1.5 for rate in rates), min(peaks) / 10, max(peaks) * HEADROOM]
        unit = unit_for([max(peaks)], RATE_UNITS)
        x_axis = axes.logarithmic(ends, "FLOPs per byte of memory traffic", INTENSITY)
        return x_axis, axes.logarithmic(rates, unit.name, unit)

    def _x(self, value: float) -> float:
        return self._right_by(self._across.share(value))

    def _y(self, value: float) -> float:
        return self._up_by(self._up.share(value))

    def _right_by(self, share: float) -> float:
        return round(self._frame.left + (self._frame.right - self._frame.left) * share / 100, 1)

    def _up_by(self, share: float) -> float:
        return round(self._frame.bottom - (self._frame.bottom - self._frame.top) * share / 100, 1)

    def _spot(self, point: RooflinePoint) -> Spot:
        return Spot(self._x(point.flop_per_byte), self._y(point.flop_per_s))

    def _grid(self) -> list[Mark]:
        frame, marks = self._frame, list[Mark]()
        for tick in self._across.ticks():
            x = self._right_by(float(tick.at.rstrip("%")))
            marks.append(Segment(x, frame.top, x, frame.bottom, "rule"))
            marks.append(Word(x, frame.bottom + 17, tick.label, "scale", "middle"))
        for tick in self._up.ticks():
            y = self._up_by(float(tick.at.rstrip("%")))
            marks.append(Segment(frame.left, y, frame.right, y, "rule"))
            marks.append(Word(frame.left - 8, y + 4, tick.label, "scale", "end"))
        middle, title = (frame.left + frame.right) / 2, f"{self._across.title} (logarithmic)"
        marks.append(Word(middle, frame.bottom + 38, title, "scale", "middle"))
        return [*marks, Word(4, 36, f"{self._up.title} (logarithmic)", "scale")]

    def _legend(self) -> list[Mark]:
        names = sorted({point.backend for point in self._shown}, key=slot_of)
        dots = [Dot(12 + 96 * place, 11, slot_of(name), name) for place, name in enumerate(names)]
        return [*dots, *(Word(22 + 96 * place, 15, name, "backend") for place, name in enumerate(names))]

    def _roof_lines(self) -> Iterator[Segment]:
        slope = self._scene.slope
        for roof in self._scene.roofs:
            start = self._ridge(roof)
            y = self._y(roof.best_flop_per_s)
            yield Segment(start, y, self._frame.right, y, "roof", tip=_roof_tip(roof))
        if slope is not None and self._scene.roofs:
            top = max(roof.best_flop_per_s for roof in self._scene.roofs)
            low = max(self._across.low, self._up.low / slope.best_byte_per_s)
            ridge = top / slope.best_byte_per_s
            foot = self._x(low), self._y(low * slope.best_byte_per_s)
            yield Segment(*foot, self._x(ridge), self._y(top), "roof", tip=_slope_tip(slope))

    def _own_roofs(self) -> Iterator[Segment]:
        for point in self._shown:
            if point.roof_flop_per_s:
                x, y, slot = self._x(point.flop_per_byte), self._y(point.roof_flop_per_s), slot_of(point.backend)
                yield Segment(x, self._y(point.flop_per_s), x, y, "reach", slot)
                yield Segment(x - CAP, y, x + CAP, y, "cap", slot, f"roof: {rate(point.roof_flop_per_s)}")

    def _ridge(self, roof: Product) -> float:
        slope = self._scene.slope
        return self._x(roof.best_flop_per_s / slope.best_byte_per_s) if slope else self._frame.left

    def _groups(self) -> list[tuple[RooflinePoint, list[Spot]]]:
        """Return the points of each piece of work, from the highest down."""
        spots_by_work: dict[str, list[tuple[RooflinePoint, Spot]]] = {}
        for point in self._shown:
            spots_by_work.setdefault(point.work_id, []).append((point, self._spot(point)))
        return [(pairs[0][0], sorted((dot for _, dot in pairs), key=lambda d: d.y)) for pairs in spots_by_work.values()]

    def _labels(self, lines: Sequence[Segment], groups: Sequence[tuple[RooflinePoint, list[Spot]]]) -> list[Word]:
        points = [self._spot(point) for point in self._shown]
        occupied = [Box(spot.x - DOT, spot.y - DOT, spot.x + DOT, spot.y + DOT) for spot in points]
        occupied += [box for line in lines for box in _along(line)]
        is_narrow = self._size.width < NARROW_BELOW
        wishes = []
        for roof in self._scene.roofs:
            # A short label has the rate in the unit of the axis, without repeating the unit.
            text = f"{roof.place.precision} {number(roof.best_flop_per_s, self._up.unit.size)}"
            wishes.append((text if is_narrow else _roof_text(roof), self._roof_spots(roof), "peak", _roof_tip(roof)))
        if self._scene.slope:
            text = f"memory {bandwidth(self._scene.slope.best_byte_per_s)}"
            wishes.append((text, self._slope_spots(), "peak", _slope_tip(self._scene.slope)))
        longest = LONGEST_NARROW_LABEL if is_narrow else LONGEST_LABEL
        short = _short_titles([point.title for point, _ in groups], longest)
        named_groups = zip(short[:MOST_NAMED], groups, strict=False)
        wishes += [(text, _name_spots(group), "work", point.title) for text, (point, group) in named_groups]
        spots = place([(text, spots) for text, spots, _, _ in wishes], occupied, self._frame)
        return [
            Word(round(spot.x, 1), round(spot.y, 1), text, kind, spot.anchor, tip=tip)
            for (text, _, kind, tip), spot in zip(wishes, spots, strict=True)
            if spot is not None
        ]

    def _roof_spots(self, roof: Product) -> list[Spot]:
        """Return spots above the roof from its end inwards, then below it."""
        y, start, end = self._y(roof.best_flop_per_s), self._ridge(roof), self._frame.right - 4
        steps = [end - k * (end - start) / 12 for k in range(11)]
        return [Spot(x, y + dy, "end") for dy in (-8.0, 17.0) for x in steps]

    def _slope_spots(self) -> list[Spot]:
        """Return spots on the left of the slope at several heights, then on its right."""
        slope = self._scene.slope
        assert slope is not None
        top = min(roof.best_flop_per_s for roof in self._scene.roofs)
        heights = [top / factor for factor in (3.0, 2.0, 5.0, 8.0, 1.4, 12.0)]
        spots = [Spot(self._x(height / slope.best_byte_per_s) - 12, self._y(height), "end") for height in heights]
        return spots + [replace(s, x=s.x + 30, y=s.y + 12, anchor="start") for s in spots]

    def _summary(self) -> str:
        roofs_text = "; ".join(map(_roof_text, self._scene.roofs))
        if not roofs_text:
            return f"{plural(len(self._shown), 'cell')}: achieved rate by intensity; a stroke connects each to its roof"
        return f"{plural(len(self._shown), 'cell')} below {plural(len(self._scene.roofs), 'roof')}: {roofs_text}"


def place(wishes: Iterable[tuple[str, Sequence[Spot]]], occupied: Iterable[Box], frame: Box) -> list[Spot | None]:
    """Return for each (text, spots) its first spot that covers no label and nothing taken, None if all do."""
    covered = list(occupied)
    placed_spots: list[Spot | None] = []
    for text, spots in wishes:
        boxes = {spot: spot.box(text) for spot in spots}
        free_spots = (s for s, box in boxes.items() if box.within(frame) and not any(map(box.meets, covered)))
        spot = next(free_spots, None)
        if spot is not None:
            covered.append(boxes[spot])
        placed_spots.append(spot)
    return placed_spots


def _along(line: Segment) -> Iterator[Box]:
    """Yield small boxes that cover a line."""
    x1, y1, x2, y2 = map(float, (line.x1, line.y1, line.x2, line.y2))
    count = max(1, int(max(abs(x2 - x1), abs(y2 - y1)) / 6))
    for step in range(count + 1):
        x, y = x1 + (x2 - x1) * step / count, y1 + (y2 - y1) * step / count
        yield Box(x - 3, y - 2, x + 3, y + 2)


def _name_spots(group: Sequence[Spot]) -> list[Spot]:
    """Return the spots for the name of a work: next to its points, above and below them, then farther away."""
    spots = [spot for d in group for spot in (Spot(d.x + 10, d.y + 4), Spot(d.x - 10, d.y + 4, "end"))]
    spots += [Spot(group[0].x, group[0].y - 11, "middle"), Spot(group[-1].x, group[-1].y + 20, "middle")]
    for lines_away in range(1, 5):
        for y in (group[-1].y + 4 + lines_away * LINE, group[0].y + 4 - lines_away * LINE):
            spots += [Spot(group[0].x + 10, y), Spot(group[0].x - 10, y, "end")]
    return spots


def _short_titles(titles: Sequence[str], longest: int) -> list[str]:
    """Return the label of each work: its name, and the details that distinguish it from works with the same name.

    A label is cut unless that makes it the same as another one.
    """
    words = [title.split(" ") for title in titles]
    common = set.intersection(*map(set, words)) if words else set()
    texts = []
    for name, *details in words:
        is_unique = sum(other[0] == name for other in words) == 1
        texts.append(name if is_unique else " ".join([name, *(word for word in details if word not in common)]))
    texts = [text if texts.count(text) == 1 else title for title, text in zip(titles, texts, strict=True)]
    short = [text if len(text) <= longest else text[: longest - 1] + "…" for text in texts]
    count_by_title = Counter(short)
    return [cut if count_by_title[cut] == 1 else text for cut, text in zip(short, texts, strict=True)]


def rate(value: float | None) -> str:
    """Return FLOP/s in a suitable unit, or a dash."""
    return quantity(value, unit_for([value or 0.0], RATE_UNITS))


def bandwidth(value: float | None) -> str:
    """Return byte/s in a suitable unit, or a dash."""
    return quantity(value, unit_for([value or 0.0], BANDWIDTH_UNITS))


def _roof_text(roof: Product) -> str:
    return f"{roof.place.precision} {rate(roof.best_flop_per_s)}, {roof.backend}"


def _roof_tip(roof: Product) -> str:
    calls_text = f"{plural(roof.calls, 'call')} in {plural(roof.processes, 'process', 'processes')}"
    text = (
        f"{roof.place.precision} product of {roof.size} × {roof.size}, {roof.backend}: best "
        f"{rate(roof.best_flop_per_s)}, median {rate(roof.median_flop_per_s)} of {calls_text}"
    )
    return text if roof.datasheet_flop_per_s is None else f"{text}; stated {rate(roof.datasheet_flop_per_s)}"


def _slope_tip(slope: Slope) -> str:
    best, median, copy = map(bandwidth, (slope.best_byte_per_s, slope.median_byte_per_s, slope.copy_byte_per_s))
    return f"STREAM triad, {slope.by}: best {best}, median {median} of {plural(slope.calls, 'call')}; copy {copy}"
