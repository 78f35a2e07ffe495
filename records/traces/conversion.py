"""Converts a backend's own files, one per worker and traced epoch, to one neutral trace.

The clocks of several files are aligned by marks, each of which contains the time of the machine's monotonic clock just
before it was made: a mark is never early, so that the smallest difference is the most accurate. Clocks of different
machines are not aligned.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from keras_matrix.records.traces import neutral, programs, torch
from keras_matrix.records.traces.kineto import kinds
from keras_matrix.records.traces.neutral import Flow, Head, Span, TrackKind, is_part
from keras_matrix.records.traces.request import Names, TraceError, problem_text
from keras_matrix.records.traces.xspace import reader, tracks

XPLANE = ".xplane.pb"
CHROME = (".json", ".json.gz")
# Some profilers count nanoseconds since 1970; the difference of two such times is still valid in a trace.
MOST_NS = neutral.MOST_NS // 2
MOST_WARNINGS, WARNING_CHARACTERS = 5, 300
_NAME = re.compile(r"epoch(\d+)\.worker(\d+)\.")


@dataclass(slots=True)
class ConvertedFile:
    """The content of one file, in the clock of its own profiler; `clocks` pairs times of that clock and the machine's.

    Its workers begin with `first_worker`. `others` says what events there are that are not read.
    """

    spans: list[Span]
    flows: list[Flow]
    clocks: list[tuple[int, int]]
    device: str
    first_worker: int = 0
    base_ns: int = 0
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    others: str = ""
    programs: dict[str, bytes] = field(default_factory=dict)


def file_name(epoch: int, worker: int, ending: str) -> str:
    """Return the file name of a worker's epoch."""
    return f"epoch{epoch}.worker{worker}{ending}"


def files_in(folder: Path) -> list[Path]:
    """Return the backend's own files of a folder, by epoch and worker."""
    return sorted((path for path in folder.iterdir() if _NAME.match(path.name)), key=_place)


def worker_of(path: Path) -> int | None:
    """Return the worker that a file's name contains, None for a name that this project has not given."""
    match = _NAME.match(path.name)
    return int(match[2]) if match else None


def make(files: Sequence[Path], target: Path, backend: str, names: Names | None = None) -> Head:
    """Convert these files to one neutral trace, with the summary of its programs next to it, and return its head.

    Raises `TraceError` or OSError.
    """
    if not files:
        raise TraceError(f"{target.parent}: contains no file of a profiler")
    converted_files = [_part(path, names or Names()) for path in files]
    if not any(converted_file.spans for converted_file in converted_files):
        raise TraceError(
            f"{files[0]}: contains no event of a profiler{converted_files[0].others}; record it again, or name another "
            "file"
        )
    steps = {
        (converted_file.first_worker, span.step)
        for converted_file in converted_files
        for span in converted_file.spans
        if span.track.kind is TrackKind.STEPS
    }
    workers = {worker for worker, _ in steps} or {0}
    head = Head(
        backend,
        workers=1
        + max((span.track.worker for converted_file in converted_files for span in converted_file.spans), default=0),
        device=next(
            (converted_file.device for converted_file in converted_files if converted_file.device != "cpu"), "cpu"
        ),
        steps=len(steps) // len(workers) or None,
        epochs=len({_place(path)[0] for path in files}),
        warnings=_sentences(text for converted_file in converted_files for text in converted_file.warnings),
        notes=_sentences(text for converted_file in converted_files for text in converted_file.notes),
    )
    shifts = _shifts_ns(converted_files)
    neutral.write(target, head, *_shifted(converted_files, shifts))
    if summary := programs.of_xla(
        {name: data for converted_file in converted_files for name, data in converted_file.programs.items()}
    ):
        programs.write(target.with_name(programs.PROGRAMS_NAME), summary)
    return head


def make_of(path: Path, target: Path) -> None:
    """Convert one file of any backend, or a neutral trace, to a neutral trace. Raises `TraceError` or OSError."""
    if neutral.is_one(path):
        neutral.write(target, neutral.head_of(path), neutral.spans(path), neutral.flows(path))
    else:
        make([path], target, backend_of(path))


def backend_of(path: Path) -> str:
    """Return the backend of a file, by its name. Raises `TraceError`."""
    if path.name.endswith(XPLANE):
        return "xla"
    if path.name.endswith(CHROME):
        return "torch"
    raise TraceError(f"{path}: must end in {', '.join((XPLANE, *CHROME))}, as profilers name their files")


def _place(path: Path) -> tuple[int, ...]:
    match = _NAME.match(path.name)
    return tuple(map(int, match.groups())) if match else (0, 0)


def _part(path: Path, names: Names) -> ConvertedFile:
    try:
        converted_file = _read(path, _place(path)[1], names)
    except (LookupError, TypeError, ValueError) as error:
        raise TraceError(f"{path}: contains an invalid mark: {problem_text(error)}; record it again") from error
    for span in converted_file.spans:
        if span.track.worker >= neutral.MOST_WORKERS or abs(span.start_ns) + span.duration_ns > MOST_NS:
            text = f"{span.name!r} on device {span.track.worker} at {span.start_ns} ns for {span.duration_ns} ns"
            raise TraceError(f"{path}: contains an event out of range: {text}; record it again")
    return converted_file


def _sentences(texts: Iterable[str]) -> list[str]:
    """Return warnings or notes, each text once and in a line."""
    sentences = dict.fromkeys(" ".join(text.split())[:WARNING_CHARACTERS] for text in texts)
    return [text for text in sentences if text][:MOST_WARNINGS]


def _read(path: Path, worker: int, names: Names) -> ConvertedFile:
    if backend_of(path) == "torch":
        recording = torch.read(path)
        spans, flows = torch.spans(recording, worker)
        converted_file = ConvertedFile(
            spans, flows, recording.clocks, recording.device, worker, recording.base_ns, notes=recording.notes
        )
        return replace(converted_file, others=kinds(recording.others))
    profile = reader.read(path)
    spans, notes = _finished(tracks.spans(profile, worker, names))
    converted_file = ConvertedFile(
        spans, [], profile.clocks, profile.device, worker, warnings=profile.warnings, programs=profile.programs
    )
    return replace(converted_file, notes=notes)


def _finished(spans: list[Span]) -> tuple[list[Span], list[str]]:
    """Return the spans without the mark of a last step in which the profiler stopped, and what to say about it."""
    step_spans = sorted((span for span in spans if span.track.kind is TrackKind.STEPS), key=lambda span: span.start_ns)
    counts: dict[int | None, Counter[str]] = {step_span.step: Counter() for step_span in step_spans}
    for span in spans:
        if span.track.kind in neutral.WORKING and span.step in counts:
            counts[span.step][span.name] += 1
    if not is_part(list(counts.values())):
        return spans, []
    last_mark = step_spans[-1]
    length_text = f"{last_mark.duration_ns / 1e6:.3f} ms"
    text = f"{last_mark.name}, the last one ({length_text}), is left out: the profiler stopped before it ended"
    return [span for span in spans if span is not last_mark], [text]


def _shifts_ns(converted_files: Sequence[ConvertedFile]) -> list[int]:
    """Return each part's shift to a common clock, which is zero at the beginning of the first step."""
    # By how much a file's clock is ahead of the machine's; without marks, of the file's time base.
    lags = [
        min(
            (profiler_ns - machine_ns for profiler_ns, machine_ns in converted_file.clocks),
            default=-converted_file.base_ns,
        )
        for converted_file in converted_files
    ]
    for steps_only in (True, False):
        begins = [
            span.start_ns - lag
            for converted_file, lag in zip(converted_files, lags, strict=True)
            for span in converted_file.spans
            if not steps_only or span.track.kind is TrackKind.STEPS
        ]
        if begins:
            return [-lag - min(begins) for lag in lags]
    return [0] * len(converted_files)


def _shifted(converted_files: Sequence[ConvertedFile], shifts: Sequence[int]) -> tuple[Iterator[Span], Iterator[Flow]]:
    """Return all spans and flows, each part's shifted to the common clock."""
    pairs = list(zip(converted_files, shifts, strict=True))
    spans = (
        span._replace(start_ns=span.start_ns + shift)
        for converted_file, shift in pairs
        for span in converted_file.spans
    )
    flows = (
        Flow(name, *(point._replace(at_ns=point.at_ns + shift) for point in ends))
        for converted_file, shift in pairs
        for name, *ends in converted_file.flows
    )
    return spans, flows
