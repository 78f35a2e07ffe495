"""Run in a process with KERAS_BACKEND set: reads a folder through pipelines, and trains from them; prints JSON.

Usage: python read_sources.py FOLDER CASE...        a case is a JSON object of parameters of the workload
"""

import json
import os
import sys
import time
import warnings

warnings.simplefilter("ignore")  # third-party warnings at import; the figures below are what is tested

import keras  # noqa: E402
import numpy as np  # noqa: E402
from keras.src.trainers.data_adapters import get_data_adapter  # noqa: E402

from keras_matrix.models.registry import workloads  # noqa: E402
from keras_matrix.models.workload import Request, UnsupportedWorkload  # noqa: E402

BATCH, STEPS, STEP_TIME_MS = 4, 5, 30.0
SMALL = {"image_size": 32, "base": "timed_wait", "step_time_ms": STEP_TIME_MS}


def batches_of(source: object, count: int) -> list[tuple]:
    """Return the first batches as `fit` on this backend gets them."""
    adapter = get_data_adapter(source, shuffle=False)
    backend = keras.backend.backend()
    adapter.on_epoch_begin()
    if backend == "tensorflow":
        stream = iter(adapter.get_tf_dataset())
    else:
        stream = iter(adapter.get_torch_dataloader() if backend == "torch" else adapter.get_numpy_iterator())
    found = [tuple(map(np.asarray, next(stream))) for _ in range(count)]
    del stream
    adapter.on_epoch_end()
    return found


def read(folder: str, case: dict) -> dict:
    """Compare what a pipeline yields with its loader, and train one epoch from it."""
    request = Request({**SMALL, "dataset_path": folder, **case}, "synthetic", None, batch_size=BATCH)
    try:
        built = workloads()["finetune"](request)
    except (UnsupportedWorkload, ValueError) as problem:
        return {"refused": f"{type(problem).__name__}: {problem}"}
    pipeline = built.pipeline
    expected = pipeline.in_memory(4)
    plain = batches_of(pipeline.source(timed=False), 4)
    timed = batches_of(pipeline.source(timed=True), 4)
    source = pipeline.source(timed=False)
    built.model.fit(source, steps_per_epoch=2, verbose=0, shuffle=False)
    begun_s, begun_cpu_s = time.perf_counter(), time.process_time()
    history = built.model.fit(source, steps_per_epoch=STEPS, epochs=2, verbose=0, shuffle=False).history
    return {
        "equal": all((a == c).all() and (b == d).all() for (a, b), (c, d) in zip(expected, plain, strict=True)),
        "shapes": [list(plain[0][0].shape), list(plain[0][1].shape)],
        "dtypes": [str(plain[0][0].dtype), str(plain[0][1].dtype)],
        "numbers": [int(batch[2][5]) for batch in timed],
        "stages": list(timed[0][2].shape),
        "depth": pipeline.depth,
        "pass": pipeline.batches_per_pass,
        "facts": {
            name: getattr(pipeline.facts, name) for name in ("pipeline", "workers", "worker_kind", "decoder", "resizer")
        },
        "loss": history["loss"][-1],
        "step_s": (time.perf_counter() - begun_s) / (2 * STEPS),
        "step_cpu_s": (time.process_time() - begun_cpu_s) / (2 * STEPS),
    }


if __name__ == "__main__":
    found = [read(sys.argv[1], json.loads(case)) for case in sys.argv[2:]]
    print(json.dumps(found), flush=True)
    os._exit(0)  # workers of an endless source need not end by themselves
