"""Measure what `runner explain` says of planted differences: the table in docs/lab/explain.md. Nothing here is a test.

lab/run explain FOLDER [PLANT ...]    plants: twice, copied, jit; all by default; a quiet machine, 15 minutes

Each plant is measured on each backend, five processes of each side, interleaved, with one thread. Only the cells that a
plant compares are measured. The printed rows are those of the table.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

from keras_matrix.records.text import percentage
from keras_matrix.runner.cli.main import main as runner

BACKENDS = ("jax", "tensorflow", "torch")
WORKLOAD = "tests.workloads.explained"
MATRIX = f"""\
version: 1
defaults: {{epochs: 4, discard: 1, samples: 1024, batch_size: 1024, steps_per_epoch: 10, threads: 1, timeout_s: 600}}
backends: [{", ".join(BACKENDS)}]
cells:
  - {{workload: "{WORKLOAD}:plain", jit: [true, false]}}
  - {{workload: "{WORKLOAD}:twice", jit: [true, false]}}
  - {{workload: "{WORKLOAD}:copied", jit: [true, false]}}
"""
# How each backend runs by default: JAX compiles, the others do not on a CPU.
COMPILED = {"jax": True, "tensorflow": False, "torch": False}
PLANTS = {
    "twice": lambda usual: (("plain", usual), ("twice", usual)),
    "copied": lambda usual: (("plain", usual), ("copied", usual)),
    "jit": lambda usual: (("plain", True), ("plain", False)),
}


def explained(backend: str, base: tuple[str, bool], new: tuple[str, bool]) -> dict[str, Any]:
    """Return the document of `runner explain` of two cells."""
    ids = [cell(backend, *variant) for variant in (base, new)]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        runner(["explain", *ids, "--json", "--new-run"])
    document: dict[str, Any] = json.loads(printed.getvalue())
    return document


def cell(backend: str, name: str, jit: bool) -> str:
    """Return the id of a cell of the matrix."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        runner(["plan", "--json", "--backend", backend])
    cells = json.loads(printed.getvalue())["cells"]
    workload_and_jit = (f"{WORKLOAD}:{name}", jit)
    return next(
        str(entry["cell_id"])
        for entry in cells
        if (entry["settings"]["workload"], entry["settings"]["jit"]) == workload_and_jit
    )


def row(plant: str, backend: str, document: dict[str, Any]) -> str:
    """Return a row of the table."""
    first, ratio = document["differences"][0], document["ratio"]
    interval = f"{ratio['centre']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})" if ratio["low"] else "no interval"
    change = f"{document['change_s'] * 1e3:+.1f} ms"
    return (
        f"| {plant} | {backend} | {change}, {interval} | {first['title']} | {percentage(first['share'])} "
        f"| {percentage(document['unexplained_share'])} |"
    )


def main(folder: str, *plants: str) -> None:
    """Measure the plants in a folder, and print their rows."""
    root, place = Path.cwd(), Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    os.chdir(place)
    if not Path("tests").exists():
        Path("tests").symlink_to(root / "tests")
    Path("matrix.yaml").write_text(MATRIX)
    for plant in plants or PLANTS:
        for backend in BACKENDS:
            print(row(plant, backend, explained(backend, *PLANTS[plant](COMPILED[backend]))), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
