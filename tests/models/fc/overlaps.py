"""Run with a backend: can a sum of gradients begin before all gradients are computed?

Prints an answer for each mode that has the setting `overlap`. On JAX and TensorFlow it is read from the compiled or
traced step: whether there is a sum that does not depend on every product. PyTorch runs eagerly: it is made to say how
many gradients there are when DistributedDataParallel sums its first bucket, and whether the manual mode goes on while
it communicates.
"""

import json
import os
import re
import threading

from keras_matrix.models.fc.native import assemble, reserve
from keras_matrix.models.fc.worker_group import WorkerSpec
from keras_matrix.records.fc.spec import OVERLAPPING, FcProblem

# The first bucket of DistributedDataParallel is full at 1 MiB, which is one of these layers.
SMALL = FcProblem(workers=2, level=3, weight_size=512, batch_size=32)


def ancestors(graph: dict[str, set[str]], name: str) -> set[str]:
    """Return all that a node depends on; `graph` gives what it depends on at once."""
    found, left = set(), [name]
    while left:
        for before in graph.get(left.pop(), ()):
            if before not in found:
                found.add(before)
                left.append(before)
    return found


def jax_overlaps(worker_group) -> bool:
    text = worker_group._step.lower(worker_group._weights, worker_group._batch).compile().as_text()
    computations = {m[1]: m[2] for m in re.finditer(r"^(?:ENTRY )?%?([\w.-]+) \(.*?\{\n(.*?)^\}", text, re.M | re.S)}
    entry = re.search(r"^ENTRY %?([\w.-]+) ", text, re.M)[1]
    graph, products, sums = {}, set(), set()
    for line in computations[entry].splitlines():
        name, rest = re.match(r"\s*(?:ROOT )?%?([\w.-]+) = (.*)", line).groups()
        graph[name] = set(re.findall(r"%([\w.-]+)", rest))
        called = " ".join(computations.get(own, "") for own in re.findall(r"(?:calls|to_apply)=%?([\w.-]+)", rest))
        if re.search(r"\b(all-reduce|reduce-scatter)(-start)?\(", rest):
            sums.add(name)
        elif re.search(r"\bdot\(|matmul", rest + called):
            products.add(name)
    assert products, text
    assert sums, text
    return any(not products <= ancestors(graph, one) for one in sums)


def tensorflow_overlaps(worker_group) -> bool:
    operations = worker_group._step.get_concrete_function().graph.get_operations()
    graph = {op.name: {x.op.name for x in op.inputs} | {c.name for c in op.control_inputs} for op in operations}
    # Each worker's own: a sum needs both workers' parts in any case.
    products = {op.name for op in operations if op.type == "MatMul"}
    sums = {op.name for op in operations if op.type == "AddN"}
    assert len(products) == 2 * (4 + 4 + 3)
    assert len(sums) >= 4
    return any(not products <= ancestors(graph, one) for one in sums)


def ddp_overlaps(problem: FcProblem) -> bool:
    """Each rank notes how many gradients it has made whenever it begins a sum."""
    from keras_matrix.models.fc.native import torch as native
    from keras_matrix.models.fc.ranks import Ranks

    made, at_sums = [], []
    real_count, real_weight = native.TorchWorker.count, native.TorchRank._weight

    def count(self, *arguments):
        at_sums.append(len(made))
        real_count(self, *arguments)

    def weight(self, array):
        own = real_weight(self, array)
        own.register_hook(lambda gradient: made.append(gradient.shape))
        return own

    def at_sums_of_a_step(self):
        made.clear()
        at_sums.clear()
        self.run(1)
        return at_sums

    native.TorchWorker.count, native.TorchRank._weight = count, weight
    native.TorchRank.at_sums = at_sums_of_a_step
    try:
        worker_group = Ranks(WorkerSpec(problem, seed=0))
        worker_group.run(1)  # in its first step DistributedDataParallel has one bucket
        noted = worker_group._ask("at_sums")
        worker_group.close()
    finally:
        native.TorchWorker.count, native.TorchRank._weight = real_count, real_weight
    return all(own[0] < problem.level + 1 for own in noted)


def by_hand_overlaps(problem: FcProblem) -> bool:
    """Whether the program communicates aside, and whether that lets the program go on."""
    import torch

    from keras_matrix.models.fc.native.torch_worker import TorchWorker
    from keras_matrix.models.fc.programs import program
    from keras_matrix.models.fc.worker_group import batch_of, weights_of

    gate = threading.Event()
    finish = TorchWorker(2).meanwhile(lambda: gate.wait(30))
    gate.set()

    aside = []

    class Watched(TorchWorker):
        def meanwhile(self, communicate):
            aside.append(communicate)
            return communicate

        def _all_reduce(self, x):
            return x

        def _reduce_scatter(self, x, axis):
            return x.chunk(2, axis)[0]

        def _all_gather(self, x, axis):
            return x.repeat(1, 2)

    weights, batch = weights_of(problem, 0, 0), batch_of(problem, 0, 0)
    program(problem.mode)(Watched(2), problem, list(map(torch.tensor, weights)), tuple(map(torch.tensor, batch)))
    return finish() and len(aside) == problem.level + 1


if __name__ == "__main__":
    backend = os.environ["KERAS_BACKEND"]
    reserve(backend, 2, "cpu")
    found = {}
    for mode in OVERLAPPING:
        for overlap in ("on", "off"):
            problem = SMALL.changed(mode=mode, overlap=overlap)
            if backend == "torch":
                found[f"{mode} {overlap}"] = (ddp_overlaps if mode == "fc_data" else by_hand_overlaps)(problem)
            else:
                look = {"jax": jax_overlaps, "tensorflow": tensorflow_overlaps}[backend]
                found[f"{mode} {overlap}"] = look(assemble(backend, WorkerSpec(problem, seed=0)))
    print(json.dumps(found))
