"""The child's side of a probe (`runner.executors.probe`): reads an order and writes the answer, in one folder."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from keras_matrix.records import files
from keras_matrix.records.codec import decode, dumps, loads

T = TypeVar("T")


def answer_order(kind: type[T], answer: Callable[[T], object]) -> None:
    """Answer the order in the folder that the command line names."""
    folder = Path(sys.argv[1])
    order = decode(kind, loads((folder / "order.json").read_bytes()), "order")
    files.replace(folder / "answer.json", dumps(answer(order)))
