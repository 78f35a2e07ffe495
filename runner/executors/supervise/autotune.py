"""Variables of a GPU cell that make a backend's autotuners choose per process, once for all repeats, or not at all.

Kernels are tuned by timing them, so that processes may choose differently: a user has this scatter between processes
(`fresh`), the choice of the first process for all of them (`pinned`), or each library's own guess (`off`).

Sources: XLA's own descriptions of the flags (xla/debug_options_flags.cc); TensorFlow's use_cudnn.cc; of PyTorch
torch/_inductor/config.py. Derived from these sources, not tested on a GPU.
"""

from __future__ import annotations

from pathlib import Path

from keras_matrix.records.backends import TABLE
from keras_matrix.runner.cell.job import Job

INDUCTOR_CACHE = "inductor"


def autotuning(job: Job) -> dict[str, str]:
    """Return the variables for the cell's setting `autotune`."""
    backend = TABLE[job.settings.backend]
    if job.settings.autotune == "off":
        return dict(backend.autotune_off)
    if job.autotune_dir is None:
        return {}
    if not backend.autotune_in_xla:
        return {"TORCHINDUCTOR_CACHE_DIR": str(Path(job.autotune_dir) / INDUCTOR_CACHE)}
    if job.tuned_path.exists():
        return {"XLA_FLAGS": f"--xla_gpu_load_autotune_results_from={job.tuned_path}"}
    # Written at every compilation: into the cell's own folder, and moved to its final path after the cell's work.
    return {"XLA_FLAGS": f"--xla_gpu_dump_autotune_results_to={job.tuning_path}"}
