"""Compare tokens/s of a cell with those of a bare script that calls KerasHub's generate(). Run it on a quiet machine.

    ci/study generate                                 gpt2 tiny, 10 pairs of processes for each backend
    ci/study generate --pairs 20 --backends jax       one backend
    ci/study generate --size base --longest 64       another size

A pair is a cell in a process of the runner and a bare script in another, one after the other, in random order. Both
make the same number of calls on prompts of the same shape; the first epoch is left out. Printed: the ratio of their
rates with its 95 % interval over the pairs.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from keras_matrix.analysis.stats.blocks import of_logs
from keras_matrix.records.store import Results, latest_attempts
from keras_matrix.runner.cli.main import main as runner

BACKENDS = ("tensorflow", "jax", "torch")
# A practitioner's script: nothing of this project is imported. It prints the seconds of each epoch of calls.
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
epochs_s = []
for _ in range(asked["epochs"]):
    begun_s = time.perf_counter()
    for _ in range(asked["calls"]):
        model.generate({"token_ids": ids, "padding_mask": mask}, stop_token_ids=None)
    epochs_s.append(time.perf_counter() - begun_s)
print(json.dumps(epochs_s))
"""
MATRIX = """\
version: 1
defaults: {{repeats: 1, epochs: {epochs}, steps_per_epoch: {calls}, feed: host_fed}}
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


def bare(backend: str, args: argparse.Namespace) -> float:
    """Return the tokens/s of a bare script."""
    asked = vars(args) | {"config": CONFIGS[args.size]}
    command = [sys.executable, "-c", BARE, json.dumps(asked)]
    environment = os.environ | {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    epochs_s = json.loads(done.stdout.splitlines()[-1])[1:]
    return args.batch * (args.longest - args.prompt) * args.calls * len(epochs_s) / sum(epochs_s)


def cell(backend: str, args: argparse.Namespace) -> float:
    """Return the tokens/s of a cell."""
    with tempfile.TemporaryDirectory(prefix="generate-study-") as folder:
        path, results = Path(folder) / "matrix.yaml", Path(folder) / "results"
        path.write_text(MATRIX.format(backend=backend, **vars(args)), encoding="utf-8")
        with contextlib.redirect_stdout(io.StringIO()):
            runner(["--matrix", str(path), "--results", str(results), "--json"])
        run = Results(results).latest()
        assert run is not None
        [record] = latest_attempts(run.load()[0])
    assert record.times.tokens_per_s is not None, record.reason
    return record.times.tokens_per_s


def main(arguments: list[str]) -> int:
    """Measure the pairs of each backend and print the ratios."""
    parser = argparse.ArgumentParser(description="tokens/s of a cell over those of a bare script")
    parser.add_argument("--backends", nargs="+", default=BACKENDS, choices=BACKENDS)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--size", default="tiny", choices=sorted(CONFIGS))
    for name, value in {"batch": 4, "prompt": 16, "longest": 64, "calls": 50, "epochs": 6}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args(arguments)
    backends, pairs = args.__dict__.pop("backends"), args.__dict__.pop("pairs")
    draw = random.Random(0)
    for backend in backends:
        logs = []
        for _ in range(pairs):
            order = draw.sample((cell, bare), 2)
            rates = {one.__name__: one(backend, args) for one in order}
            logs.append(math.log(rates["cell"] / rates["bare"]))
            print(f"{backend}: cell {rates['cell']:,.0f}, bare {rates['bare']:,.0f} tokens/s", flush=True)
        found = of_logs(logs)
        assert found is not None
        ends = "" if found.low is None else f" [{found.low:.4f} {found.high:.4f}]"
        print(f"{backend}: cell over bare script {found.centre:.4f}{ends}, {pairs} pairs", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
