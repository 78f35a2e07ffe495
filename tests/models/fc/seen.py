"""Run with a backend: what is made of what its profiler saw of collectives; of PyTorch, how its own clock sees them."""

import json
import os
import threading
from dataclasses import dataclass, field


@dataclass
class Event:
    """An operation as a profiler tells it."""

    name: str
    start_ns: float
    duration_ns: float
    told: dict[str, object] = field(default_factory=dict)


@dataclass
class Made:
    """What a profiler's file holds, with one line."""

    seen: list[Event]
    name: str = "made up"

    @property
    def lines(self):
        return [self]

    def events(self):
        return self.seen

    def stats(self, event):
        return event.told


def of_jax() -> dict[str, object]:
    from models.fc.native import jax

    def instruction(name, device, start_ns, duration_ns):
        return Event("thunk", start_ns, duration_ns, {"hlo_op": name, "device_ordinal": device})

    jax.seen_by = lambda backend, run: [
        Made(
            [
                instruction("all-reduce.1", 0, 0, 10),
                instruction("all-gather", 0, 5, 7),
                instruction("all-reduce.1", 1, 0, 6),
                instruction("dot", 1, 6, 100),
            ]
        )
    ]
    return {"inside_ns": round(jax._inside_s({"all-reduce.1", "all-gather"}, lambda: None) * 1e9)}


def of_tensorflow() -> dict[str, object]:
    from models.fc.native import tensorflow

    tensorflow.seen_by = lambda backend, run: [
        Made(
            [
                Event("worker_0/collective_of_2/AddN", 0, 10),
                Event("worker_1/collective_of_1/concat", 3, 6),
                Event("worker_1/MatMul", 9, 100),
            ]
        )
    ]
    return {"inside_ns": round(tensorflow._inside_s(2, lambda: None) * 1e9)}


def of_torch() -> dict[str, object]:
    import torch

    from models.fc.native.torch import TorchWorker, Watch

    waited = []

    class Bucket:
        def wait(self):
            waited.append(self)

    worker, threads = TorchWorker(2), []
    worker.bucket_reduce = lambda buffer: Bucket()
    Watch(worker, torch.device("cpu"))
    worker.bucket_reduce(None)
    worker.meanwhile(lambda: threads.append(threading.current_thread()))()
    return {"beside": threads != [threading.main_thread()], "buckets waited for": len(waited)}


if __name__ == "__main__":
    WAYS = {"jax": of_jax, "tensorflow": of_tensorflow, "torch": of_torch}
    print(json.dumps(WAYS[os.environ["KERAS_BACKEND"]]()))
