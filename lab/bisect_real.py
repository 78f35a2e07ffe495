"""Searches of `runner bisect` for a planted slowdown, measured for real, without a package index.

    lab/run bisect_real [--trials 3] [--versions 64] [--slowdown 0.05] [--backend jax] [--folder build/bisect]

For each trial the folder gets one tiny wheel a version of the package `planted`, which computes more from a random
version on, and a workload that uses it. A quiet machine is needed; docs/lab/bisect.md says how long it takes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from keras_matrix.records.text import percent_change
from tests.small_wheels import write_wheel

ROOT = Path(__file__).parents[1]
WIDTH, LAYERS = 256, 40  # of equal products, so that one more layer is 2.5 % more work
WORKLOAD = f'''"""A workload whose cost the installed version of `planted` determines."""

import keras
import numpy as np
import planted


def build():
    layers = [keras.Input(({WIDTH},)), *(keras.layers.Dense({WIDTH}, "relu") for _ in range(planted.LAYERS))]
    model = keras.Sequential([*layers, keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
    rng = np.random.default_rng(0)
    x = rng.random((1024, {WIDTH}), dtype=np.float32)
    return model, x, x.mean(axis=1, keepdims=True)
'''
MATRIX = """\
version: 1
backends: [{backend}]
cells:
  - workload: "costly:build"
    batch_size: 256
    threads: 1
    epochs: {epochs}
    discard: 2
    steps_per_epoch: {steps}
    freed_memory: kept  # returned memory doubles the scatter between processes (docs/lab/power.md)
"""


def write_project(folder: Path, versions: int, first_slow: int, slowdown: float) -> None:
    """Write the wheels 1.0 to 1.N into `folder`/wheels, and the workload; 1.0 is fast."""
    wheels = folder / "wheels"
    wheels.mkdir(parents=True, exist_ok=True)
    for number in range(versions):
        layers = LAYERS + (round(LAYERS * slowdown) if number >= first_slow else 0)
        write_wheel(wheels, "planted", f"1.{number}", f"LAYERS = {layers}\n")
    (folder / "costly.py").write_text(WORKLOAD)


def write_matrix(folder: Path, backend: str, epochs: int = 18, steps: int = 2) -> None:
    """Write the matrix with the one cell."""
    (folder / "matrix.yaml").write_text(MATRIX.format(backend=backend, epochs=epochs, steps=steps))


def search(folder: Path, versions: int, arguments: list[str]) -> tuple[int, dict[str, object]]:
    """Run the command there, without an index, and return its exit code and its document."""
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str((folder / "wheels").resolve())}
    ends = ["--package", "planted", "--good", "1.0", "--bad", f"1.{versions - 1}"]
    command = [sys.executable, "-m", "keras_matrix.runner", "bisect", "costly:build", *ends, *arguments]
    completed = subprocess.run([*command, "--json"], cwd=folder, env={**os.environ, **offline}, stdout=-1, check=False)
    return completed.returncode, json.loads(completed.stdout or b"{}")


def trials(folder: Path, args: argparse.Namespace) -> Iterator[str]:
    """Yield a line for each search."""
    chosen = random.Random(args.seed)
    for number in range(args.trials):
        trial_folder = folder / f"{args.backend}-{args.seed}-{number}"
        first_slow = chosen.randrange(1, args.versions)
        write_project(trial_folder, args.versions, first_slow, args.slowdown)
        write_matrix(trial_folder, args.backend)
        code, document = search(trial_folder, args.versions, args.arguments)
        right = code == 0 and document.get("first_bad") == f"1.{first_slow}"
        verdict = "right" if right else "wrong" if code == 0 else f"undecided (exit code {code})"
        (trial_folder / "found.json").write_text(json.dumps(document, indent=1))
        steps, runs = document.get("steps", []), list(trial_folder.glob("bisect/*/2*"))
        with contextlib.suppress(TypeError, KeyError):
            size = document["size"]["centre"]  # type: ignore[index]
            verdict += f", {percent_change(size)}"
        yield f"1.{first_slow}: {verdict}; {len(steps)} steps, {len(runs)} runs, {trial_folder}"  # type: ignore[arg-type]


def main() -> None:
    """Run the searches."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--versions", type=int, default=64)
    parser.add_argument("--slowdown", type=float, default=0.05)
    parser.add_argument("--backend", default="jax")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "bisect")
    parser.add_argument("arguments", nargs="*", help="further arguments of runner bisect, after --")
    args = parser.parse_args()
    for line in trials(args.folder, args):
        print(line, flush=True)


if __name__ == "__main__":
    main()
