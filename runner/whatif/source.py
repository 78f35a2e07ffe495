"""The trace graph of a stored trace, of profilers' files of any program, or of a graph stored as Parquet files, with
the link's calibration from the collectives that the traced cell measured under load.

Promise: what cannot be read gives one error that names the file; a trace of some ranks is read, and its graph says
which are missing; `read` returns what `write` wrote, checked again. Facts of a traced cell, such as its settings, come
from its record.
"""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any, Unpack

from keras_matrix.analysis.whatif.collectives import MOST_CORRECTION, fit, measured_ratio
from keras_matrix.analysis.whatif.graph import (
    VERSION,
    Collective,
    Graph,
    GraphError,
    Header,
    LinkCalibration,
    Node,
    NodeKind,
    checked,
)
from keras_matrix.analysis.whatif.reconstruct.coverage import HeaderFacts
from keras_matrix.analysis.whatif.replay import exclusive, held_out
from keras_matrix.records.codec import CodecError, canonical, decode, loads
from keras_matrix.records.dtypes import variable_bytes
from keras_matrix.records.fc import communication, network, spec
from keras_matrix.records.fc.communication import TimedCollective
from keras_matrix.records.files import read_json
from keras_matrix.records.identity import named
from keras_matrix.records.schema import Record
from keras_matrix.records.settings import Scalar, Settings
from keras_matrix.records.text import percentage
from keras_matrix.records.traces import neutral
from keras_matrix.records.traces.conversion import CHROME, XPLANE, backend_of
from keras_matrix.records.traces.request import NATIVE_NAME
from keras_matrix.uploader.local import graph_files
from keras_matrix.uploader.local.graph_files import GraphFileDamaged

PROFILE_ENDINGS = (XPLANE, *CHROME)
ENDING = ".parquet"
ENDINGS = (*PROFILE_ENDINGS, ENDING, ".ctf")
OPERATIONS, SEGMENTS = "operations", "segments"
MOST_ERROR = 0.03
CALLBACK = re.compile(r"io_callback(\.\d+)?$|\bPyFunc(_\d+)?$", re.ASCII)
_EPOCH = re.compile(r"epoch(\d+)\.worker(\d+)\.")
NCCL = "nccl"
PREFIX = "collective_"
LISTS = frozenset(name for name, kind in graph_files.COLUMNS.items() if kind.endswith("[]"))


@dataclass(frozen=True, slots=True)
class TraceFiles:
    """The files of one trace, one per rank or process, and the record of the traced cell if it is stored.

    `step_times_s` are those of all measured processes of the cell in that run, the traced one included. `exit_code` is
    1 if files that cannot be read may have had a newer trace.
    """

    paths: tuple[Path, ...]
    record: Record | None = None
    step_times_s: tuple[float, ...] = ()
    exit_code: int = 0


def files_of(paths: Sequence[Path]) -> list[Path]:
    """Return the files of a trace that is given as files, or as a folder of them. Raises `GraphError`."""
    if len(paths) == 1 and paths[0].is_dir():
        return _in_folder(paths[0])
    for path in paths:
        if not path.is_file():
            problem = "is a folder: name it alone" if path.is_dir() else "no such file or folder"
            raise GraphError(f"{path}: {problem}")
        if not path.name.endswith(ENDINGS):
            raise GraphError(f"{path}: must end in {', '.join((*PROFILE_ENDINGS, ENDING))}")
    if len(paths) == 1 and neutral.is_one(paths[0]):
        return _beside_neutral(paths[0])
    return list(paths)


def graph_of(trace: TraceFiles, link: LinkCalibration | None = None, level: str | None = None) -> Graph:
    """Return the graph of a trace, with the calibration of its link, if it has one or `link` is given.

    `level` is that of Facts; by default segments of operations only where operations predict steps worse than
    `MOST_ERROR`, and segments better. Raises `GraphError`, `TraceError` or OSError.
    """
    graph = _graph_of(trace, level)
    if link is None and graph.header.link is None:
        link = next_to(trace.paths, trace.record.settings if trace.record else None)
        ratio = None if link is None or graph.header.missing_ranks else _ratio(graph, link)
        if ratio is not None and not 1 / MOST_CORRECTION <= ratio <= MOST_CORRECTION:
            text = (
                f"the traced collectives took {ratio:.2g} times as long as {communication.NAME} says, so that alpha "
                "and beta are fitted to them"
            )
            return replace(graph, header=replace(graph.header, caveats=(*graph.header.caveats, text)))
    return graph if link is None else replace(graph, header=replace(graph.header, link=link))


def _ratio(graph: Graph, link: LinkCalibration) -> float | None:
    """Return the time of the traced collectives, without what they shared, by that of a calibration."""
    calibrated = replace(graph, header=replace(graph.header, link=link))
    return measured_ratio(exclusive(calibrated), link)


def facts_of(record: Record) -> HeaderFacts:
    """Return what the record of a traced cell knows and its files do not."""
    settings, resolved = record.settings, record.resolved
    names = ("host_id", "cpu_model", "logical_cpus", "gpus", "machine_type")
    machine = {name: value for name, value in asdict(record.machine).items() if name in names and value}
    facts: HeaderFacts = {
        "machine": machine,
        "versions": record.versions,
        "settings": named(settings),
        "cores": resolved.cpus if resolved else None,
    }
    thread_count = resolved.intra_op_threads if resolved else None
    if settings.workload == spec.WORKLOAD:
        problem = spec.problem_of(settings)
        if resolved and resolved.cpus:
            thread_count = max(1, resolved.cpus // problem.workers)
        item_bytes = variable_bytes(problem.precision)
        sizes_bytes = [rows * columns * item_bytes for rows, columns in problem.shapes]
        facts["gradient_bytes"] = {f"layer_{number}": size_bytes for number, size_bytes in enumerate(sizes_bytes)}
    if thread_count:
        facts["threads"] = thread_count
    return facts


def _graph_of(trace: TraceFiles, level: str | None) -> Graph:
    stored_paths = [path for path in trace.paths if path.name.endswith(ENDING)]
    if stored_paths and len(stored_paths) < len(trace.paths):
        raise GraphError(f"{stored_paths[0]}: is a stored graph; name either such files or those of a profiler")
    if stored_paths:
        graph = read(stored_paths)
        return graph if trace.record is None else _with_record(graph, trace.record)
    graph = _of_profiles(trace, level or OPERATIONS)
    if level is None and trace.paths[0].name.endswith(XPLANE) and (error := _error(graph)) > MOST_ERROR:
        segment_graph = _of_profiles(trace, SEGMENTS)
        if _error(segment_graph) < error:
            text = (
                f"operations predict the next step with a mean error of {percentage(error)}, so that "
                "nodes are segments of them"
            )
            return replace(
                segment_graph, header=replace(segment_graph.header, caveats=(*segment_graph.header.caveats, text))
            )
    return graph


def graph_of_files(paths: Sequence[Path], **facts: Unpack[HeaderFacts]) -> Graph:
    """Return the graph of these files; a rank without a file is missing, and the graph says so.

    A name that ends in .json or .json.gz is a Kineto file, one in .xplane.pb is JAX's or TensorFlow's. Raises
    `TraceError` for a file that cannot be read, and `GraphError` for one that has no graph.
    """
    from keras_matrix.analysis.whatif.reconstruct.kineto import graph as kineto  # readers: a stored graph needs none
    from keras_matrix.analysis.whatif.reconstruct.xplane import graph as xplane

    if not paths:
        raise GraphError("no trace: give the profiler's file of at least one rank")
    formats = {backend_of(path): path for path in paths}
    if len(formats) > 1:
        first, second = list(formats.values())[:2]
        raise GraphError(f"{first} and {second} are of different profilers; give the files of one run")
    return xplane.graph_of(paths, facts) if "xla" in formats else kineto.graph_of(paths, facts)


def _of_profiles(trace: TraceFiles, level: str) -> Graph:
    facts: HeaderFacts = facts_of(trace.record) if trace.record else {}
    facts["level"] = level
    graph = graph_of_files(list(trace.paths), **facts)
    return graph if trace.record is None else _with_record(graph, trace.record)


def _error(graph: Graph) -> float:
    """Return the mean error of predicting each step from the one before; 0 if it is not known."""
    if len(graph.header.step_times_s) < 2:
        return 0.0
    return fmean(abs(held_out_step.error) for held_out_step in held_out(graph))


def _with_record(graph: Graph, record: Record) -> Graph:
    """Return the graph with the facts of the traced cell that a builder may have left out."""
    facts = facts_of(record)
    header = replace(
        graph.header,
        source=f"cell {record.cell_id} of {record.run_id}",
        backend=record.settings.backend,
        device=record.settings.device,
        settings=facts["settings"],
        versions=facts["versions"],
        machine={**facts["machine"], **graph.header.machine},
        cores=graph.header.cores or facts["cores"],
    )
    return Graph(header, _with_sleeps(graph.nodes, facts["settings"]))


def _with_sleeps(nodes: Sequence[Node], settings: Mapping[str, Scalar]) -> tuple[Node, ...]:
    """Return the nodes; layers that sleep, in a callback of JAX or TensorFlow, keep no core busy."""
    if not any(spec.parameter(settings, name) for name in ("forward_sleep_ms", "backward_sleep_ms")):
        return tuple(nodes)
    return tuple(replace(node, cores=0.0) if CALLBACK.search(node.name) else node for node in nodes)


def _in_folder(folder: Path) -> list[Path]:
    if stored_paths := files_in(folder):
        return stored_paths
    if (native := folder / NATIVE_NAME).is_dir() and not native.is_symlink():
        return _in_folder(native)
    profiles = (
        path
        for path in folder.iterdir()
        if path.name.endswith(PROFILE_ENDINGS) and path.is_file() and not path.is_symlink()
    )
    trace_files = sorted(path for path in profiles if path.name != communication.NAME)
    epochs = {path: (int(match[1]), int(match[2])) for path in trace_files if (match := _EPOCH.match(path.name))}
    if epochs:
        # The files of an epoch are one trace. The last one is furthest from the start of the program.
        last_epoch = max(epoch for epoch, _ in epochs.values())
        return sorted(
            (path for path, (epoch, _) in epochs.items() if epoch == last_epoch), key=lambda path: epochs[path]
        )
    if not trace_files:
        raise GraphError(f"{folder}: contains no file of a profiler ({', '.join(PROFILE_ENDINGS)}) and no stored graph")
    return trace_files


def _beside_neutral(path: Path) -> list[Path]:
    """Return the profilers' files next to a neutral trace, which itself has no dependencies."""
    native = path.parent / NATIVE_NAME
    if native.is_dir():
        return _in_folder(native)
    raise GraphError(
        f"{path}: is a neutral trace, which does not say what waits for what; name the profiler's own files, which are "
        f"next to it in {NATIVE_NAME}/"
    )


def of_file(path: Path, settings: Settings | None = None) -> LinkCalibration:
    """Return the calibration of a file. Raises `GraphError`, which names it.

    `collectives.json`, next to the profilers' files of a trace, is such a file; so may be any other of the same format,
    a list of `{"operation": "all_reduce", "ranks": 2, "bytes": 1048576, "seconds": 0.05}`, of NCCL with `"library":
    "nccl"`.
    """
    try:
        times = decode(list[TimedCollective], read_json(os.path.realpath(path)), path.name)
    except OSError as error:
        raise GraphError(f"{path}: cannot be read: {error.strerror or error}") from error
    except CodecError as error:
        raise GraphError(f"{path}: is not a list of timed collectives ({error})") from error
    return of_times(times, str(path), settings)


def next_to(paths: Sequence[Path], settings: Settings | None = None) -> LinkCalibration | None:
    """Return the calibration that is stored with these files of a trace; None without one. Raises `GraphError`."""
    path = paths[0].parent / communication.NAME
    return of_file(path, settings) if path.is_file() else None


def of_times(times: Sequence[TimedCollective], source: str, settings: Settings | None) -> LinkCalibration:
    """Return alpha and beta of timed collectives: of the operation and number of ranks that were timed most often.

    Of NCCL's collectives, whose algorithm depends on the size, also a table with the median of each size.
    """
    if not times:
        raise GraphError(f"{source}: contains no timed collective; trace the cell again")
    operation, rank_count = Counter(
        (timed_collective.operation, timed_collective.ranks) for timed_collective in times
    ).most_common(1)[0][0]
    points = [
        (timed_collective.bytes, timed_collective.seconds)
        for timed_collective in times
        if (timed_collective.operation, timed_collective.ranks) == (operation, rank_count)
    ]
    link = fit(points, ranks=rank_count, source=source, operation=operation, rate_bits_per_s=rate_of(settings))
    return (
        replace(link, table=_table(times))
        if any(timed_collective.library == NCCL for timed_collective in times)
        else link
    )


def _table(times: Sequence[TimedCollective]) -> tuple[tuple[str, int, int, float], ...]:
    times_s: dict[tuple[str, int, int], list[float]] = defaultdict(list)
    for timed_collective in times:
        times_s[timed_collective.operation, timed_collective.ranks, timed_collective.bytes].append(
            timed_collective.seconds
        )
    return tuple((*key, median(values)) for key, values in sorted(times_s.items()))


def rate_of(settings: Settings | None) -> float | None:
    """Return the rate of a cell's links in bits a second; None for one that is not limited."""
    if settings is None or settings.workload != spec.WORKLOAD:
        return None
    return network.bits_per_s(spec.problem_of(settings).network)


def write(graph: Graph, folder: Path) -> list[Path]:
    """Write a graph into a folder, made if it is missing, and return the files. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    ranks = sorted({node.rank for node in graph.nodes})
    header = canonical({**asdict(graph.header), "files": ranks})
    return [
        graph_files.write(folder, rank, header, (_row(node) for node in graph.nodes if node.rank == rank))
        for rank in ranks
    ]


def files_in(folder: Path) -> list[Path]:
    """Return the files of the graph that is stored in a folder, by rank; empty if there is none."""
    files = (path for path in folder.glob(f"rank*{ENDING}") if not path.is_symlink())
    return sorted(files, key=lambda path: (len(path.name), path.name))


def read(paths: list[Path]) -> Graph:
    """Return the graph stored in these files, one per rank. Raises `GraphError` naming the file.

    A folder with the files of only some ranks is refused, since nodes depend on those of other ranks.
    """
    try:
        headers = {path: graph_files.header_of(path) for path in paths}
        first_header = headers[paths[0]]
        for path, text in headers.items():
            if text != first_header:
                raise GraphError(f"{path}: is of another graph than {paths[0]}; name the files of one graph")
        header, ranks = _header(paths[0], first_header)
        if len(paths) < len(ranks):
            raise GraphError(f"{paths[0].parent}: has files of {len(paths)} ranks, the graph has {len(ranks)}")
        nodes = tuple(_nodes(graph_files.rows_of(paths)))
    except GraphFileDamaged as error:
        raise GraphError(str(error)) from error
    except (CodecError, TypeError, ValueError, KeyError, AttributeError) as error:
        if isinstance(error, GraphError):
            raise
        raise GraphError(f"{paths[0]}: is not a stored trace graph ({error})") from error
    return checked(Graph(header, nodes))


def _row(node: Node) -> dict[str, Any]:
    row = {field.name: getattr(node, field.name) for field in fields(node) if field.name != "collective"}
    if (collective := node.collective) is not None:
        row |= {f"{PREFIX}{field.name}": getattr(collective, field.name) for field in fields(collective)}
    return row


def _nodes(rows: list[tuple[Any, ...]]) -> Iterator[Node]:
    names = tuple(graph_files.COLUMNS)
    for values in rows:
        row: dict[str, Any] = {
            name: tuple(value) if name in LISTS and value is not None else value
            for name, value in zip(names, values, strict=True)
        }
        collective_fields = {name.removeprefix(PREFIX): row.pop(name) for name in names if name.startswith(PREFIX)}
        collective = Collective(**collective_fields) if collective_fields["group"] is not None else None
        yield Node(**row | {"kind": NodeKind(row["kind"]), "collective": collective})


def _header(path: Path, text: str) -> tuple[Header, list[int]]:
    data = loads(text)
    if (version := data.get("version")) != VERSION:
        raise GraphError(f"{path}: has version {version!r}, this program reads {VERSION}; build it again")
    ranks = data.pop("files")
    link: Mapping[str, Any] | None = data["link"]
    if link is not None:
        data["link"] = LinkCalibration(**{**link, "table": tuple(tuple(row) for row in link["table"])})
    values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in data.items()}
    return Header(**values), ranks
