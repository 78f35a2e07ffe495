"""Entries of `tasks` in a matrix file, and the `.cfg` files of the deeplearning-benchmark driver."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from keras_matrix.records.task import Compute, Goal
from keras_matrix.runner.errors import MatrixError
from keras_matrix.runner.matrix.cfg import Filled, flags_without_place, read_cfg, unused_keys
from tests.reliability.fuzz import documents
from tests.reliability.fuzz.target import Check, Target

PATTERNS = (
    r"loss: ([0-9.]+)",
    r"(\d+\.\d+|\d+) samples/sec",
    r"Speed: (\S+)",
    "(.*)",
    r"(a+)+$",
    r"é=(\d)",
    r"(?i)acc=(\d)",
)
NAMES = ("resnet50", "a b", "speed", "total time", "x/s", "f1")
METRICS = st.dictionaries(
    st.sampled_from(NAMES),
    st.sampled_from(PATTERNS)
    | st.fixed_dictionaries(
        {"pattern": st.sampled_from(PATTERNS)},
        optional={
            "unit": st.sampled_from(["s", "samples/s"]),
            "compute": st.sampled_from([str(one) for one in Compute]),
            "goal": st.sampled_from([str(one) for one in Goal]),
            "discard": st.integers(0, 3),
        },
    ),
    max_size=2,
)
WORDS = st.sampled_from(["python", "{python}", "train.py", "--lr={lr}", "$HOME", "${lr}", "{outputs}", "é", "'"])


@st.composite
def entries(draw: st.DrawFn) -> dict[str, Any]:
    """Return an entry of `tasks`."""
    shell = draw(st.booleans())
    words = ["run", "{lr}", *draw(st.lists(WORDS, max_size=3))]
    entry: dict[str, Any] = {"task": draw(st.sampled_from(NAMES)), "command": " ".join(words) if shell else words}
    entry |= {"shell": shell, "params": {"lr": draw(st.sampled_from([0.1, [0.1, 0.2], "x", [1, True]]))}}
    entry["metrics"] = draw(METRICS)
    if draw(st.integers(0, 3)) == 0:
        entry |= {"environment": {"A_1": "{lr}"}, "inherit": draw(st.sampled_from(["all", ["HOME"], []]))}
    if draw(st.integers(0, 3)) == 0:
        entry |= {"wrap": ["nice"], "timeout_s": 10, "gpus": draw(st.integers(0, 2)), "workers": 2}
    return entry


TASKS = st.lists(entries(), min_size=1, max_size=2)
"""The entries of `tasks` in a matrix; the target of this module are the `.cfg` files."""

KEYS = ("patterns", "metrics", "compute_method", "command_to_execute", "num_gpus")
PERCENT = ("%%", "%", "%(root)s", "%(missing)s", "%(", r"\%", "%(command_to_execute)s", "%()s")
ODD = (
    *(
        "[",
        "]",
        "[]",
        "[name]",
        "[DEFAULT]",
        "=",
        ":",
        "\n",
        "\n  ",
        "\t",
        "\r",
        "#",
        ";",
        "\0",
        "\ufeff",
        "\x1b[0m",
        '"""',
    ),
    *(
        "[" * 3000,
        "(" * 300,
        "'" + "a" * 5000,
        "9" * 6000,
        "\\",
        "\\N{x}",
        "--gpus 1",
        "(a+)+$",
        "lambda: 0",
        "1" + "+1" * 3000,
    ),
)


@st.composite
def sections(draw: st.DrawFn) -> str:
    """Return a section; its three lists usually have the same length."""
    rows = draw(
        st.lists(st.tuples(st.sampled_from(PATTERNS), st.sampled_from(NAMES)), max_size=2, unique_by=lambda r: r[1])
    )
    methods = [draw(st.sampled_from([str(one) for one in Compute])) for _ in rows]
    command = draw(
        st.sampled_from(["python train.py --gpus 8 --epochs 20", "%(root)s/run --dtype float32", "a 100%% b"])
    )
    values = {
        "patterns": repr([row[0] for row in rows]),
        "metrics": repr([row[1] for row in rows]),
        "compute_method": repr(methods),
        "command_to_execute": command,
        "num_gpus": str(draw(st.integers(0, 8))),
        "root": "/data",
    }
    change = draw(st.integers(0, 19))
    if change == 0:
        del values[draw(st.sampled_from(KEYS))]
    elif change == 1:
        key = draw(st.sampled_from(KEYS))
        at = draw(st.integers(0, len(values[key])))
        values[key] = values[key][:at] + draw(st.sampled_from([*PERCENT, *ODD])) + values[key][at:]
    elif change == 2:
        values[draw(st.text(min_size=1, max_size=6))] = draw(st.text(max_size=10))
    sign = draw(st.sampled_from([" = ", "=", ": "]))
    return "".join(f"{key}{sign}{value}\n" for key, value in values.items())


@st.composite
def texts(draw: st.DrawFn) -> bytes:
    """Return a file with one or two sections, the one named `task` first."""
    text = f"[task]\n{draw(sections())}"
    if draw(st.integers(0, 3)) == 0:
        text += f"\n[{draw(st.sampled_from(['other', 'DEFAULT', 'a b']))}]\n{draw(sections())}"
    if draw(st.integers(0, 9)) == 0:
        at = draw(st.integers(0, len(text)))
        text = text[:at] + draw(st.sampled_from(ODD)) + text[at:]
    return draw(documents.damaged_bytes(text.encode("utf-8", "surrogatepass")))


@contextmanager
def checking(folder: Path) -> Iterator[Check]:
    path = folder / "task.cfg"
    filled = Filled(gpus=2, epochs=3, kvstore="dist\\1", dtype="float16")

    def check(data: bytes) -> bool:
        path.write_bytes(data)
        try:
            task = read_cfg(path, "task", filled)
            unused_keys(path, "task", filled)
        except MatrixError as error:
            assert error.problems != []
            return False
        flags_without_place(task.command[0], filled)
        return True

    yield check


TARGET = Target(texts(), checking, share=100, modules=("runner/matrix/cfg.py", "runner/matrix/cfg.py"))
