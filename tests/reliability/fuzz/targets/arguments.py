"""Structured values on the command lines of `runner` and `uploader`: each is used, or refused with a message.

An input is the name of a flag, a blank, and its value.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from hypothesis import strategies as st

from keras_matrix.analysis.whatif.graph import Graph, GraphError
from keras_matrix.analysis.whatif.what_ifs import registry
from keras_matrix.dashboards.live.app.hosts import listen_address
from keras_matrix.records.appended import checked_note
from keras_matrix.records.host import device_lists
from keras_matrix.runner.errors import MatrixError, UsageError
from keras_matrix.runner.matrix.overrides import Overrides, parse_assignment
from keras_matrix.runner.matrix.reader import expand, parse
from keras_matrix.runner.whatif.source import graph_of_files
from keras_matrix.uploader import external_import
from keras_matrix.uploader.errors import UploadError
from tests.analysis.whatif.reconstruct.xplane.profiles import Op, step, write_jax
from tests.reliability.fuzz import documents
from tests.reliability.fuzz.target import ROOT, Check, Target

MATRIX = parse(Path("matrix.yaml"), (ROOT / "matrix.yaml").read_bytes())
WHAT_IFS = [*registry.WHAT_IFS]
REFUSED = (UsageError, MatrixError, UploadError, GraphError, ValueError)


def traced() -> Graph:
    """Return the graph of a trace with two steps of three operations."""
    ops = [
        Op(name, begin + at, begin + at + 5, number)
        for number, begin in enumerate((0, 40), 1)
        for at, name in ((1, "dot.1"), (8, "dot.2"), (16, "dot.3"), (24, "all-reduce"), (32, "sub.1"))
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = write_jax(Path(folder) / "epoch2.worker0.xplane.pb", [step(1, 0, 40), step(2, 40, 80)], ops)
        return graph_of_files([path], settings={"batch_size": 32, "backend": "jax"})


GRAPH = traced()


def assigned(text: str) -> object:
    key, value = parse_assignment(text)
    return expand(MATRIX, Overrides(assignments={key: value}))


def what_if(text: str) -> object:
    choice = registry.read(text)
    with suppress(GraphError):  # the parser accepted it, though this graph may lack what it changes
        registry.realised(GRAPH, [choice])
        registry.apply(GRAPH, [choice])
    return choice


def mapped(text: str) -> object:
    needed = ("workload=w", "backend=b", "value=v", "started_at=s")
    return external_import.mapping([text, *(one for one in needed if one.partition("=")[0] != text.partition("=")[0])])


def gpus(text: str) -> str | None:
    return device_lists.gpu_text(text) if device_lists.gpu_fault(text) is None else None


KEYS = (
    "batch_size",
    "epochs",
    "threads",
    "cpus",
    "jit",
    "gpus",
    "repeats",
    "image_size",
    "workload",
    "backend",
    "seed",
)
VALUES = (
    *(
        "1",
        "32",
        "auto",
        "all",
        "true",
        "0-3",
        "1,0",
        "0-",
        "3-1",
        "0-99999999",
        "1e-3",
        "1e999",
        "-1",
        "'1'",
        "''",
        "x",
        "*",
    ),
    *(
        "[a-",
        "[!a]*",
        "0x1",
        "0.5",
        "10G",
        "10Gbit/s",
        "5us",
        "dense",
        "dense:0.5",
        "a,b",
        "9" * 5000,
        "\0",
        "é",
        "GPU-1",
    ),
)
HOSTS = (
    "127.0.0.1:8080",
    "localhost:0",
    "[::1]:80",
    "0.0.0.0:80",
    ":80",
    "a:65536",
    "[::1",
    "::1:1",
    "[[::1]]:1",
    "a:٣",
)
NOTES = ("a note", "", " ", "a\nb", "x" * 5000, "\x1b[0m", "é")
SETTINGS = (
    "batch_size=32",
    "epochs=3",
    "threads=2",
    "cpus=0-3",
    "jit=true",
    "repeats=auto",
    "seed=7",
    "image_size=16",
    "gpus=0,1",
)
FILTERS = ("lstm", "c*", "workload=bert", "backend=jax", "batch_size=*", "[a-z]*", "phase=fit")
CHOICES = (
    *(
        "batch_size=64",
        "gradient_accumulation=2",
        "no_overlap",
        "no_input_stalls",
        "recomputation=all",
        "recomputation=dense",
    ),
    *(
        "precision=dense:0.5",
        "precision=all",
        "op_fusion=0-1:0.8",
        "tensor_fusion=8",
        "tensor_fusion=3,5,2",
        "tensor_fusion=each",
    ),
    *("bandwidth=500mbit", "bandwidth=1e9", "latency=2ms", "workers=2"),
)
Flag = tuple[Callable[[str], object], tuple[str, ...], st.SearchStrategy[str]]
VALUE = st.sampled_from(VALUES)


def pairs(names: tuple[str, ...] | list[str]) -> st.SearchStrategy[str]:
    """Return texts NAME=VALUE."""
    return st.tuples(st.sampled_from(names), st.sampled_from(["=", "=", "=", "=", "", "=="]), VALUE).map("".join)


# Of each flag: what reads it, usual values, and unusual ones.
FLAGS: Mapping[str, Flag] = {
    "--set": (assigned, SETTINGS, pairs(KEYS)),
    "--filter": (lambda text: expand(MATRIX, Overrides(filters=(text,))), FILTERS, pairs(KEYS)),
    "--backend": (lambda text: expand(MATRIX, Overrides(backends=(text,))), ("jax", "torch"), VALUE),
    "--what-if": (what_if, CHOICES, pairs(WHAT_IFS)),
    "--listen": (lambda text: listen_address(text, ["bench.example.org"]), HOSTS[:4], st.sampled_from(HOSTS)),
    "--public": (
        lambda text: listen_address("0.0.0.0:80", [text]),
        ("bench.example.org", "::2"),
        st.sampled_from(HOSTS),
    ),
    "--note": (checked_note, NOTES[:1], st.sampled_from(NOTES)),
    "--map": (mapped, ("value=a", "batch_size=x"), pairs(["value", "workload", "params", "batch_size", "other"])),
    "--source": (external_import.source, NOTES[:1], st.sampled_from(NOTES)),
    "cpus": (device_lists.parse_cpus, ("0", "0-3", "0,2-3", "7-7"), VALUE),
    "gpus": (gpus, ("0", "0,1", "GPU-12345678-1234-1234-1234-123456789012"), VALUE),
}


@st.composite
def inputs(draw: st.DrawFn) -> bytes:
    """Return a flag and a value, of which a third are unusual and a tenth have changed bytes."""
    name = draw(st.sampled_from(sorted(FLAGS)))
    _, usual, unusual = FLAGS[name]
    value = draw(st.sampled_from(usual) if draw(st.integers(0, 2)) else unusual)
    return f"{name} ".encode() + draw(documents.damaged_bytes(value.encode()))


def check(data: bytes) -> bool:
    """Use one value of a flag. A ValueError, which flags turn into a message, has a text."""
    name, _, value = data.partition(b" ")
    try:
        return bool(FLAGS[name.decode()][0](value.decode("utf-8", "surrogateescape")))
    except REFUSED as error:
        assert str(error)
        return False


@contextmanager
def checking(_: Path) -> Iterator[Check]:
    yield check


TARGET = Target(
    inputs(),
    checking,
    share=120,
    modules=(
        *("runner/matrix/overrides.py", "dashboards/live/app/hosts.py", "records/host/device_lists.py"),
        *(
            "analysis/whatif/what_ifs/registry.py",
            "analysis/whatif/what_ifs/layers.py",
            "analysis/whatif/what_ifs/workers.py",
        ),
    ),
)
