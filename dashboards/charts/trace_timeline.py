"""One step of a trace as a picture: a row per track, a bar per operation, the largest ones named.

Pure functions of a stored trace, which is read twice as a stream. Promise: at most `MOST_TRACKS` rows and `MOST_BARS`
bars; the picture says what is left out. Of operations that nest, the outer one is drawn; bars of one colour that less
than a pixel separates are one.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from keras_matrix.dashboards.charts.picture import Area, Mark, Picture, ScaledPicture, Segment, Word
from keras_matrix.records.text import TIME_UNITS, plural, quantity, unit_for
from keras_matrix.records.traces import neutral
from keras_matrix.records.traces.neutral import WORKING, Span, Track, TrackKind

MOST_TRACKS, MOST_BARS, MOST_NAMED = 20, 1500, 6
ROW, BAR, TOP, BOTTOM, RIGHT = 26, 18, 8, 40, 14
PIXELS_PER_CHARACTER, LEAST_CHARACTERS = 6.6, 4
MOST_CHARACTERS = 60
# Tracks that are drawn, and what colours a bar: its phase, else its kind.
DRAWN = (TrackKind.INPUT, TrackKind.HOST, TrackKind.COMPUTE, TrackKind.COMMUNICATION, TrackKind.COPY)
COLOURS = ("forward", "backward", "update", "communication", "input", "copy", "host", "other")


@dataclass(frozen=True, slots=True)
class TimelineSize:
    """The width of a picture and of its column of names, in pixels."""

    width: int
    names: int


WIDE, NARROW = TimelineSize(960, 132), TimelineSize(350, 98)


@dataclass(frozen=True, slots=True)
class _Bar:
    """An operation: its place in pixels, its colour, its tip, and its name if that fits in."""

    x: float
    width: float
    colour: str
    tip: str
    name: str = ""

    def marks(self, y: int) -> list[Mark]:
        width = round(max(self.width, 0.6), 2)
        area = Area(round(self.x, 2), y, width, BAR, f"bar {self.colour}", tip=self.tip)
        return [area, *([Word(round(self.x + 4, 1), y + 13, self.name, "name")] if self.name else [])]


@dataclass(frozen=True, slots=True)
class Timeline:
    """A step as it is drawn; `left_out` counts bars that are not drawn on a wide screen."""

    picture: ScaledPicture
    left_out: int


@dataclass(frozen=True, slots=True)
class StepSpans:
    """The spans of one step by track; `largest` are its operations with the most time, in seconds, and their number."""

    number: int | None
    begin_ns: int
    end_ns: int
    tracks: tuple[tuple[Track, tuple[Span, ...]], ...]
    largest: tuple[tuple[str, float, int], ...]
    left_out: str = ""

    @property
    def colours(self) -> list[str]:
        """The colours that occur, in their order."""
        used_colours = {colour_of(span) for _, spans in self.tracks for span in spans}
        return [colour for colour in COLOURS if colour in used_colours]


def step_of(path: Path) -> StepSpans | None:
    """Return the step in the middle of a trace, or all of one without steps; None if nothing ran in it.

    Raises `TraceError`.
    """
    steps = sorted({span.step or 0 for span in neutral.spans(path) if span.track.kind is TrackKind.STEPS})
    number = steps[len(steps) // 2] if steps else None
    marks, spans_by_track = [], defaultdict[Track, list[Span]](list)
    for span in neutral.spans(path):
        if number is None or span.step == number:
            if span.track.kind is TrackKind.STEPS:
                marks.append(span)
            elif span.track.kind in DRAWN:
                spans_by_track[span.track].append(span)
    if not spans_by_track:
        return None
    outer = {track: tuple(_outer(spans)) for track, spans in spans_by_track.items()}
    all_spans = [span for spans in outer.values() for span in spans]
    kept_tracks, left_out = _kept(outer)
    return StepSpans(
        number=number,
        begin_ns=min(span.start_ns for span in (*all_spans, *marks)),
        end_ns=max(span.end_ns for span in (*all_spans, *marks)),
        tracks=kept_tracks,
        largest=_largest(all_spans),
        left_out=left_out,
    )


def timeline(step: StepSpans) -> Timeline:
    """Return a step as it is drawn."""
    (wide, left_out), (narrow, _) = draw(step, WIDE), draw(step, NARROW)
    return Timeline(ScaledPicture("", wide, narrow), left_out)


def draw(step: StepSpans, size: TimelineSize) -> tuple[Picture, int]:
    """Return the picture of a step in one size, and how many bars are not drawn."""
    span_ns = max(step.end_ns - step.begin_ns, 1)
    scale = (size.width - size.names - RIGHT) / span_ns
    has_several_workers = len({track.worker for track, _ in step.tracks}) > 1
    most = MOST_BARS // max(1, len(step.tracks))
    picture = Picture(
        TOP + len(step.tracks) * ROW + BOTTOM,
        summary=f"{plural(len(step.tracks), 'track')} over {_time(span_ns)}",
        role=f"roofline timeline {'wide' if size is WIDE else 'narrow'}",
        width=size.width,
    )
    left_out = 0
    for number, (track, spans) in enumerate(step.tracks):
        y, bars = TOP + number * ROW, list(_bars(spans, step.begin_ns, scale, size))
        widest = sorted(bars, key=lambda bar: -bar.width)[:most]
        left_out += len(bars) - len(widest)
        name = f"{track.worker}: {track.name}" if has_several_workers else track.name
        picture.axes.append(Word(0, y + 14, _cut(name, (size.names - 8) / PIXELS_PER_CHARACTER), "work"))
        picture.marks.extend(mark for bar in sorted(widest, key=lambda bar: bar.x) for mark in bar.marks(y))
    picture.axes[:0] = _ticks(span_ns, scale, size, len(step.tracks))
    return picture, left_out


def colour_of(span: Span) -> str:
    """Return the name of the colour of an operation."""
    kind = span.track.kind
    if kind in (TrackKind.COMMUNICATION, TrackKind.COPY, TrackKind.INPUT):
        return str(kind)
    if span.phase is not None:
        return str(span.phase)
    return "host" if kind is TrackKind.HOST else "other"


def _outer(spans: Iterable[Span]) -> Iterator[Span]:
    """Yield the spans that no other one of their track surrounds."""
    reached_ns = None
    for span in sorted(spans, key=lambda span: (span.start_ns, -span.duration_ns)):
        if reached_ns is None or span.start_ns >= reached_ns:
            reached_ns = span.end_ns
            yield span


def _kept(
    spans_by_track: dict[Track, tuple[Span, ...]],
) -> tuple[tuple[tuple[Track, tuple[Span, ...]], ...], str]:
    """Return the busiest tracks, in their order, and what to say about the others."""
    busiest = sorted(spans_by_track, key=lambda track: -sum(span.duration_ns for span in spans_by_track[track]))
    kept_tracks = sorted(busiest[:MOST_TRACKS], key=lambda track: (track.worker, DRAWN.index(track.kind), track.lane))
    left_out = busiest[MOST_TRACKS:]
    remark = f"{plural(len(left_out), 'track')} with the least work are left out" if left_out else ""
    return tuple((track, spans_by_track[track]) for track in kept_tracks), remark


def _largest(spans: Sequence[Span]) -> tuple[tuple[str, float, int], ...]:
    times_ns, counts = Counter[str](), Counter[str]()
    for span in spans:
        if span.track.kind in WORKING:
            times_ns[span.op] += span.duration_ns
            counts[span.op] += 1
    return tuple((name, time_ns / 1e9, counts[name]) for name, time_ns in times_ns.most_common(MOST_NAMED))


def _bars(spans: Sequence[Span], begin_ns: int, scale: float, size: TimelineSize) -> Iterator[_Bar]:
    """Yield the bars of a track, narrow neighbours of one colour as one."""
    last_bar: _Bar | None = None
    count = 1
    for span in spans:
        x, width = size.names + (span.start_ns - begin_ns) * scale, span.duration_ns * scale
        tip = f"{_cut(span.name, MOST_CHARACTERS)}: {_time(span.duration_ns)}"
        bar = _Bar(x, width, colour_of(span), tip, _cut(span.op, width / PIXELS_PER_CHARACTER - 1))
        if (
            last_bar is not None
            and last_bar.colour == bar.colour
            and x - last_bar.x - last_bar.width < 1
            and min(width, last_bar.width) < 1
        ):
            count += 1
            last_bar = replace(
                last_bar, width=max(last_bar.width, x + width - last_bar.x), tip=plural(count, "operation"), name=""
            )
            continue
        if last_bar is not None:
            yield last_bar
        last_bar, count = bar, 1
    if last_bar is not None:
        yield last_bar


def _ticks(span_ns: int, scale: float, size: TimelineSize, tracks: int) -> Iterator[Mark]:
    """Yield rules at round times, about every hundred pixels, and their labels."""
    rough = span_ns / max(2, (size.width - size.names) // 100)
    power = 10.0 ** math.floor(math.log10(rough))
    tick_ns = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    unit, bottom = unit_for([span_ns / 1e9], TIME_UNITS), TOP + tracks * ROW + BOTTOM
    for number in range(int(span_ns / tick_ns) + 1):
        x, text = round(size.names + number * tick_ns * scale, 1), f"{number * tick_ns / 1e9 / unit.size:g} {unit.name}"
        yield Segment(x, 4, x, bottom - 34, "rule")
        yield Word(x, bottom - 16, text, anchor="middle" if number else "start")


def _time(time_ns: int) -> str:
    return quantity(time_ns / 1e9, unit_for([time_ns / 1e9], TIME_UNITS))


def _cut(text: str, characters: float) -> str:
    """Return a text in at most so many characters, "" if that is too few to read."""
    if len(text) <= characters:
        return text
    return f"{text[: int(characters) - 1]}…" if characters >= LEAST_CHARACTERS else ""
