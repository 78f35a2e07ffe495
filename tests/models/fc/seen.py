"""Run with a backend: the times of collectives from its profiler; for PyTorch, from its own clock."""

import json
import os
import threading

from keras_matrix.records.traces.xspace.xplane import Plane, planes
from tests.records.traces.synthetic import Made, message, plane


def profile(*events: Made) -> list[Plane]:
    """Return the planes of a profile with these events, each on a thread of the host."""
    host = plane("/host:CPU", {f"thread {number}": [event] for number, event in enumerate(events)})
    return list(planes(message(host)))


def of_jax() -> dict[str, object]:
    from keras_matrix.models.fc.profiled import jax_collectives_s

    def instruction(name, begin_us, duration_us, device, event="thunk"):
        return event, begin_us, duration_us, {"hlo_op": name, "device_ordinal": device}

    found = profile(
        instruction("all-reduce.1", 0, 10, 0),
        instruction("all-gather", 5, 7, 0),
        instruction("all-reduce.1", 0, 5, 1),
        ("all-gather", 5, 1, {"device_ordinal": 1}),
        instruction("dot", 6, 100, 1, "all-gather"),
        ("end: all-gather", 6, 100, {}),
    )
    return {"inside_us": round(jax_collectives_s(found, {"all-reduce.1", "all-gather"}) * 1e6)}


def of_tensorflow() -> dict[str, object]:
    from keras_matrix.models.fc.profiled import tensorflow_collectives_s

    found = profile(
        ("worker_0/collective_of_2/AddN", 0, 10, {}),
        ("worker_1/collective_of_1/concat", 3, 6, {}),
        ("worker_1/MatMul", 9, 100, {}),
    )
    return {"inside_us": round(tensorflow_collectives_s(found, 2) * 1e6)}


def of_torch() -> dict[str, object]:
    import torch

    from keras_matrix.models.fc.native.torch import CollectiveTimer
    from keras_matrix.models.fc.native.torch_worker import TorchWorker

    waited = []

    class Bucket:
        def wait(self):
            waited.append(self)

    worker, threads = TorchWorker(2), []
    worker.bucket_reduce = lambda buffer: Bucket()
    CollectiveTimer(worker, torch.device("cpu"))
    worker.bucket_reduce(None)
    worker.meanwhile(lambda: threads.append(threading.current_thread()))()
    return {"in another thread": threads != [threading.main_thread()], "buckets waited for": len(waited)}


if __name__ == "__main__":
    WAYS = {"jax": of_jax, "tensorflow": of_tensorflow, "torch": of_torch}
    print(json.dumps(WAYS[os.environ["KERAS_BACKEND"]]()))
