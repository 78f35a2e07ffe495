"""Compare tokens/s of a cell with those of a bare script that calls KerasHub's generate(). Run it on a quiet machine.

    lab/run generate                                 gpt2 tiny, 10 pairs of processes for each backend
    lab/run generate --inside                        400 pairs of epochs in one process for each backend
    lab/run generate --pairs 20 --backends jax       one backend
    lab/run generate --size base --longest 64        another size

A pair is a cell in a process of the runner and a bare script in another one. Both are alive and only one of them works:
their epochs alternate, as those of compared cells do, so that both meet the machine in the same condition. Both make
the same number of calls on prompts of the same shape, with one thread on the same CPU, since two threads on two CPUs
scatter more; an epoch that compiles is left out. Printed: the ratio of their rates with its 95 % interval over the
pairs.

With --inside, epochs of the cell's loop alternate with those of the bare loop on the same model, in one process: what
differs from process to process, such as where memory lies, is the same for both, so that smaller differences show.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from keras_matrix.analysis.stats.blocks import of_logs
from keras_matrix.records.host.inherited_environment import THREAD_VARIABLES
from keras_matrix.runner.executors import Running, WaitingCell
from keras_matrix.runner.measure.seams import Seams
from lab.usage import ActsBetweenEpochs, measured

# Calls of an epoch, so that one lasts some tenths of a second with the size `tiny`.
CALLS = {"tensorflow": 10, "jax": 30, "torch": 1}
# A practitioner's script: nothing of this project is imported.
BARE = """\
import json, sys, time
asked = json.loads(sys.argv[1])
import keras, numpy as np
if keras.backend.backend() != "tensorflow":
    sys.modules["tensorflow"] = None
import keras_hub
backbone = keras_hub.models.GPT2Backbone(**asked["config"])
model = keras_hub.models.GPT2CausalLM(backbone=backbone, preprocessor=None)
model.compile(sampler="greedy")
batch, prompt, longest = asked["batch"], asked["prompt"], asked["longest"]
mask = np.zeros((batch, longest), "int32")
mask[:, :prompt] = 1
ids = np.random.default_rng(0).integers(0, asked["config"]["vocabulary_size"], (batch, longest), dtype="int32") * mask
def bare():
    begun_s = time.perf_counter()
    for _ in range(asked["calls"]):
        model.generate({"token_ids": ids, "padding_mask": mask}, stop_token_ids=None)
    return time.perf_counter() - begun_s
"""
# An epoch of calls for each line that is read, or epochs of the cell's loop and of this one, alternating, on one model.
EPOCHS_ON_DEMAND = """
for _ in sys.stdin:
    print(bare(), flush=True)
"""
BOTH_INSIDE = """
from keras_matrix.runner.cell.generation import generated
from keras_matrix.runner.cell.loop import Stretch, call_epochs
inputs = {"token_ids": ids, "padding_mask": mask}
def cell():
    log = call_epochs(lambda given: generated(model, given), [(inputs, None)], Stretch(asked["calls"], 1))
    return log.epoch_times_s[0]
bare(), cell()
for number in range(asked["pairs"]):
    found = {one.__name__: one() for one in ((cell, bare) if number % 2 else (bare, cell))}
    print(json.dumps(found), flush=True)
"""
MATRIX = """\
version: 1
defaults: {{repeats: 1, epochs: {epochs}, steps_per_epoch: {calls}, feed: host_fed, threads: 1}}
backends: [{backend}]
cells:
  - workload: gpt2
    phase: generate
    batch_size: {batch}
    params: {{size: {size}, prompt_length: {prompt}, max_length: {longest}}}
"""
CONFIGS = {
    "tiny": {"vocabulary_size": 512, "num_layers": 2, "num_heads": 2, "hidden_dim": 64, "intermediate_dim": 256},
    "base": {"vocabulary_size": 50257, "num_layers": 12, "num_heads": 12, "hidden_dim": 768, "intermediate_dim": 3072},
}


def started(backend: str, request: dict[str, Any], program: str) -> subprocess.Popen[str]:
    """Start a script, with one thread on the CPU of a cell with one thread."""
    command = [sys.executable, "-c", BARE + program, json.dumps(request | {"config": CONFIGS[request["size"]]})]
    threads = dict.fromkeys(THREAD_VARIABLES, "1")
    environment = os.environ | {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"} | threads
    process = subprocess.Popen(command, env=environment, stdin=-1, stdout=-1, text=True)
    os.sched_setaffinity(process.pid, {max(os.sched_getaffinity(0))})
    return process


class BareScript:
    """A bare script in its own process, which waits for a line before each of its epochs."""

    def __init__(self, backend: str, request: dict[str, Any]) -> None:
        self._process = started(backend, request, EPOCHS_ON_DEMAND)
        self.epochs_s: list[float] = []

    def epoch(self) -> None:
        """Let it make one epoch."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        self.epochs_s.append(float(self._process.stdout.readline()))

    def close(self) -> None:
        """Let it end."""
        self._process.communicate()


@dataclass(slots=True)
class Paired:
    """A cell's process whose measured epochs alternate with those of a bare script, in alternating order."""

    running: Running
    bare: BareScript
    measured_epochs: int
    turns: int = 0

    def turn(self, waiting: Sequence[WaitingCell] = ()) -> bool:
        """Let the cell run until it rests, and make the bare script's epoch before or after."""
        number, self.turns = self.turns, self.turns + 1
        if number > self.measured_epochs:
            return self.running.turn(waiting)
        if number % 2:
            self.bare.epoch()
        rests = self.running.turn(waiting)
        if not number % 2:
            self.bare.epoch()
        return rests

    def __getattr__(self, name: str) -> Any:
        """Pass on the rest."""
        return getattr(self.running, name)


def pair(backend: str, request: dict[str, Any]) -> tuple[float, float]:
    """Return the tokens/s of a cell and of a bare script, of the latest attempt."""
    scripts: list[BareScript] = []

    def paired(running: Running) -> Paired:
        scripts.append(BareScript(backend, request))
        return Paired(running, scripts[-1], request["epochs"] - 1)

    executor: Any = ActsBetweenEpochs(paired)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            [record] = measured(MATRIX.format(backend=backend, **request), Seams(executor=executor))
    finally:
        for script in scripts:
            script.close()
    assert record.times.tokens_per_s is not None, record.reason
    epochs_s = scripts[-1].epochs_s[1:]
    assert len(epochs_s) == len(record.times.epoch_times_s)
    tokens = request["batch"] * (request["longest"] - request["prompt"]) * request["calls"]
    return record.times.tokens_per_s, tokens / statistics.fmean(epochs_s)


def inside(backend: str, request: dict[str, Any]) -> list[float]:
    """Return the logarithms of the ratios of the two loops' rates, cell over bare, in one process."""
    output, _ = started(backend, request, BOTH_INSIDE).communicate()
    return [math.log(pair_times["bare"] / pair_times["cell"]) for pair_times in map(json.loads, output.splitlines())]


def outside(backend: str, request: dict[str, Any]) -> list[float]:
    """Return the logarithms of the ratios of rates, cell over bare, of pairs of processes."""
    logs = []
    for _ in range(request["pairs"]):
        cell, bare = pair(backend, request)
        logs.append(math.log(cell / bare))
        print(f"{backend}: cell {cell:,.0f}, bare {bare:,.0f} tokens/s", flush=True)
    return logs


def main(arguments: list[str]) -> int:
    """Measure the pairs of each backend and print the ratios."""
    parser = argparse.ArgumentParser(description="tokens/s of a cell over those of a bare script")
    parser.add_argument("--backends", nargs="+", default=tuple(CALLS), choices=tuple(CALLS))
    parser.add_argument("--inside", action="store_true", help="both loops in one process")
    parser.add_argument("--pairs", type=int, help="of processes (10), with --inside of epochs (400)")
    parser.add_argument("--size", default="tiny", choices=sorted(CONFIGS))
    parser.add_argument("--calls", type=int, help="of an epoch; by default 10 (TensorFlow), 30 (JAX), 1 (PyTorch)")
    for name, value in {"batch": 4, "prompt": 16, "longest": 64, "epochs": 31}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args(arguments)
    args.pairs = args.pairs or (400 if args.inside else 10)
    for backend in args.backends:
        request = vars(args) | {"calls": args.calls or CALLS[backend]}
        ratio = of_logs((inside if args.inside else outside)(backend, request))
        assert ratio is not None
        ends = "" if ratio.low is None else f" [{ratio.low:.4f} {ratio.high:.4f}]"
        print(f"{backend}: cell over bare script {ratio.centre:.4f}{ends}, {args.pairs} pairs", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
