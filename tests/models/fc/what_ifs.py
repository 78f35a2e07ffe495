"""Run with KERAS_BACKEND=torch: what two workers of fc_data do under the parameters of a what-if, as JSON lines."""

import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from time import perf_counter

from keras_matrix.models.fc import programs
from keras_matrix.models.fc.native import torch_worker
from keras_matrix.models.fc.native.torch import TorchRank
from keras_matrix.models.fc.prove import error, found, train
from keras_matrix.models.fc.ranks import Ranks
from keras_matrix.models.fc.worker_group import WorkerSpec
from keras_matrix.records.fc import communication
from keras_matrix.records.fc.proof import ProofOrder
from keras_matrix.records.fc.spec import FcProblem
from keras_matrix.records.traces.request import TraceOrder

SMALL = FcProblem("fc_data", workers=2, level=5, weight_size=48, batch_size=24)
SEEN: list[list[int]] = []


def buckets() -> dict[str, object]:
    """Return the buckets of the second and the third step, as positions in the order of the backward pass."""
    real = torch_worker._summed

    def noted(worker, bucket):
        known = [id(weight) for weight in worker._replica.parameters()]
        SEEN.append([len(known) - 1 - known.index(id(weight)) for weight in bucket.parameters()])
        return real(worker, bucket)

    def taken(self):
        seen, SEEN[:] = list(SEEN), []
        return seen

    torch_worker._summed, TorchRank.taken = noted, taken
    return {json.dumps(changes): _launched(changes) for changes in map(json.loads, sys.argv[2:])}


def _launched(changes):
    workers = Ranks(WorkerSpec(SMALL.changed(**changes), seed=0))
    try:
        launched = []
        for _ in range(3):
            workers.run(1)
            launched.append(workers._ask("taken"))
        assert launched[1][0] == launched[1][1] == launched[2][0]
        return launched[1][0]
    finally:
        workers.close()


def sleeps() -> dict[str, object]:
    """Return the seconds of a step whose three layers sleep 20 and 30 ms, forward only and in both directions."""
    times_s = {}
    for name, forward_ms, backward_ms in (("forward", 20.0, 0.0), ("both", 20.0, 30.0)):
        problem = SMALL.changed(level=2, forward_sleep_ms=forward_ms, backward_sleep_ms=backward_ms)
        workers = Ranks(WorkerSpec(problem, seed=0))
        workers.run(1)
        begun_s = perf_counter()
        workers.run(1)
        times_s[name] = perf_counter() - begun_s
        workers.close()
    return times_s


def precision() -> dict[str, object]:
    """Return the error of the gradients by the layers that compute in bfloat16, and the layout's problem."""
    answers = {}
    for layers in ("", "5", "0-5"):
        problem, order = SMALL.changed(amp=layers), ProofOrder([], seed=0, steps=1)
        trained, parallel = found("torch", problem, order)
        wanted = train(problem, 0, 1)
        answers[layers] = [error(trained.gradients, wanted.gradients), parallel.counted_bytes_per_step]
    return answers


def fused() -> dict[str, object]:
    """Return the error of the gradients with two compiled blocks, and how many programs were compiled."""
    problem = SMALL.changed(fuse="0-2,3-4", bucket_cap_mb=0.01)
    TorchRank.programs = lambda self: dynamo_counters()["stats"]["unique_graphs"]
    workers = Ranks(WorkerSpec(problem, seed=0, keep_gradients=True))
    workers.run(2)
    (state, _), programs = workers.states(), workers._ask("programs")
    workers.close()
    return {"error": error([state.gradients], train(problem, 0, 2).gradients), "programs": programs}


def dynamo_counters():
    """Return what torch.compile counted in this process."""
    from torch._dynamo.utils import counters

    return counters


def recomputation() -> dict[str, object]:
    """Return how many products of layers one worker computes forward in a step, without and with recomputation."""
    calls, real = [], programs._products
    programs._products = lambda problem, unit, *arguments: (calls.append(unit), real(problem, unit, *arguments))[1]
    counts = {}
    for recompute in (False, True):
        problem = SMALL.changed(workers=1, recompute=recompute, amp="" if recompute else "0")
        worker = TorchRank(WorkerSpec(problem, seed=0), 0)
        worker.run(1)
        counts[str(recompute).lower()] = len(calls)
        calls.clear()
    return counts


def calibrated() -> dict[str, object]:
    """Return what a traced cell stores next to its raw files."""
    workers = Ranks(WorkerSpec(SMALL, seed=0))
    with tempfile.TemporaryDirectory() as folder:
        workers.traced(TraceOrder(folder, [1], 2))
        workers.close()
        times = communication.read(Path(folder))
        events = [json.loads(path.read_text())["traceEvents"] for path in sorted(Path(folder).glob("epoch1.*.json"))]
    reduced = [[e["args"].get("Input Dims") for e in own if e["name"] == "gloo:all_reduce"] for own in events]
    return {"times": [asdict(one) for one in times], "reduced": reduced}


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]]()))
