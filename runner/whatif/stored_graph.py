"""A trace graph as Parquet files, one per rank, in a folder of its own.

Promise: `read` of what `write` wrote is the same graph, checked again. A folder with the files of only some ranks is
refused, since nodes depend on those of other ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

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
from keras_matrix.records.codec import CodecError, canonical, loads
from keras_matrix.uploader.local import graph_files
from keras_matrix.uploader.local.graph_files import GraphFileDamaged

ENDING = ".parquet"
PREFIX = "collective_"
LISTS = frozenset(name for name, kind in graph_files.COLUMNS.items() if kind.endswith("[]"))


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
    found = (path for path in folder.glob(f"rank*{ENDING}") if not path.is_symlink())
    return sorted(found, key=lambda path: (len(path.name), path.name))


def read(paths: list[Path]) -> Graph:
    """Return the graph stored in these files, one per rank. Raises `GraphError` naming the file."""
    try:
        headers = {path: graph_files.header_of(path) for path in paths}
        first = headers[paths[0]]
        for path, text in headers.items():
            if text != first:
                raise GraphError(f"{path}: is of another graph than {paths[0]}; name the files of one graph")
        header, ranks = _header(paths[0], first)
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
    row = {one.name: getattr(node, one.name) for one in fields(node) if one.name != "collective"}
    if (found := node.collective) is not None:
        row |= {f"{PREFIX}{one.name}": getattr(found, one.name) for one in fields(found)}
    return row


def _nodes(rows: list[tuple[Any, ...]]) -> Iterator[Node]:
    names = tuple(graph_files.COLUMNS)
    for values in rows:
        row: dict[str, Any] = {
            name: tuple(value) if name in LISTS and value is not None else value
            for name, value in zip(names, values, strict=True)
        }
        parts = {name.removeprefix(PREFIX): row.pop(name) for name in names if name.startswith(PREFIX)}
        collective = Collective(**parts) if parts["group"] is not None else None
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
