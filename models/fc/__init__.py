"""The FC modes: one stack of fully connected layers, trained by data, model and physics parallelism.

    programs.py      computation and communication of one worker, once for each mode, in `keras.ops`; stages in one
                     process
    interface.py     the interface of programs to a backend: counted collectives and transfers, gradients
    native/          each backend's workers, and how a step is built and run
    worker_group.py  all workers of a problem and their arrays
    ranks.py         worker processes;  worker.py: one of them;  meeting.py: how they find each other
    profiled.py      the time of the collectives of a compiled step, measured by the backend's own profiler
    prove.py         computes the same in NumPy, and compares the two

`records.fc.spec` defines a problem, its computation and its communication by formula. The workload below is the same
stack as Keras layers: the mode `fc_keras`, trained by `fit`; the catalog and the other counts of work are based on it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from keras_matrix.models.workload import Built, Param, Request, workload
from keras_matrix.records.fc.spec import LEARNING_RATE, MODES, PARTITIONS, FcProblem


@workload(
    batch_size=128,
    samples=128,
    params=(
        Param("mode", "fc_single_manual", "What is divided among workers, and who differentiates.", choices=(*MODES,)),
        Param("workers", 1, "Workers the work is divided among: devices, or processes on PyTorch.", 1, 1024),
        Param("level", 10, "Square matrices; one more layer, of one column, follows.", 1, 1000),
        Param("weight_size", 1024, "Rows and columns of a square matrix.", 1, 1 << 20),
        Param("phy_blocks", 1, "fc_phy: complete models of each worker.", 1, 1024),
        Param("shared_ratio", 1 / 1024, "fc_phy: share of a gradient's rows that all models average.", 0, 1),
        Param("reduce", "sum", "Data parallel: what becomes of the workers' gradients.", choices=("sum", "mean")),
        Param("overlap", "on", "fc_data, fc_data_manual: sum gradients while others are made.", choices=("on", "off")),
        Param("partition", "program", "Who puts the collectives in: the program or the backend.", choices=PARTITIONS),
        Param("model_workers", 0, "fc_hybrid: workers that divide a layer; 0: two, where workers are even.", 0, 1024),
        Param("micro_batches", 4, "fc_pipeline: parts of the batch that follow one another.", 1, 1 << 20),
        Param("network", "local", "What worker processes speak over: local, or the rate of ci/netns's links."),
        Param("bucket_cap_mb", 0.0, "fc_data: MiB of gradients that are summed together; 0: the default.", 0, 1e6),
        Param("buckets", "", "fc_data: numbers of gradients that are summed together, from the last layer: 3,5,2."),
        Param("bytes_per_pack", 0, "fc_data, TensorFlow: bytes that are summed together; 0: the default.", 0, 1 << 40),
        Param("forward_sleep_ms", 0.0, "fc_data: a sleep of every layer in the forward pass.", 0, 60_000),
        Param("backward_sleep_ms", 0.0, "fc_data: a sleep of every layer in the backward pass.", 0, 60_000),
        Param("gradient_accumulation", 1, "fc_data: parts of the batch, computed one after the other.", 1, 1 << 20),
        Param("recompute", False, "fc_data: compute layers' inputs again in the backward pass, to retain fewer."),
        Param("amp", "", "fc_data: layers that compute in bfloat16, such as 0-3,6."),
        Param("fuse", "", "fc_data: blocks of layers that are each compiled as one program, such as 0-3,4-7."),
    ),
)
def fc(request: Request) -> Built:
    """A stack of fully connected layers without bias or activation, in the modes of `runner fc`."""
    import keras
    from keras import layers

    from keras_matrix.models.fc.worker_group import draw_batch
    from keras_matrix.models.layers import heads

    size, level = request.integer("weight_size"), request.integer("level")
    initial = _normal(size**-0.5)
    inputs = x = keras.Input((size,))
    for width in [size] * level + [1]:
        x = layers.Dense(width, use_bias=False, kernel_initializer=initial)(x)
    model = keras.Model(inputs, heads.float_logits(x), name="fc")
    # The mean over the single column is that column.
    loss = keras.losses.MeanSquaredError(reduction="sum", name="sum_of_squares")
    model.compile(optimizer=keras.optimizers.SGD(LEARNING_RATE), loss=loss)
    stack = FcProblem(mode="fc_keras", level=level, weight_size=size)
    return Built(model, lambda count, seed: draw_batch(stack.changed(batch_size=count), seed))


def _normal(stddev: float) -> Callable[..., Any]:
    """Return an initializer whose values, for the same seed of Python, are the same on every backend."""
    import numpy as np

    def drawn(shape: Sequence[int], dtype: Any = None) -> Any:
        return np.random.default_rng(random.getrandbits(64)).standard_normal(shape, np.float32) * np.float32(stddev)

    return drawn
