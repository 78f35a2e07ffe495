"""Run with KERAS_BACKEND=torch: the CPUs and the threads of each of two worker processes."""

import json
import os

from keras_matrix.models.fc.ranks import Ranks
from keras_matrix.models.fc.worker_group import WorkerSpec
from keras_matrix.records.fc.spec import FcProblem

if __name__ == "__main__":
    import torch

    from keras_matrix.models.fc.native.torch import TorchRank

    TorchRank.share = lambda self: (sorted(os.sched_getaffinity(0)), torch.get_num_threads())
    whole = sorted(os.sched_getaffinity(0))
    worker_group = Ranks(
        WorkerSpec(FcProblem(mode="fc_data", workers=2, level=2, weight_size=32, batch_size=8), seed=0)
    )
    try:
        cpus, threads = zip(*worker_group._ask("share"), strict=True)
        print(json.dumps({"whole": whole, "cpus": cpus, "threads": threads}))
    finally:
        worker_group.close()
