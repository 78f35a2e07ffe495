"""Run in a process with KERAS_BACKEND set: builds workloads small, trains one batch, prints the results as JSON.

Usage: python train_every_workload.py POLICY NAME...
"""

import json
import sys
import warnings

warnings.simplefilter("ignore")  # third-party warnings at import; the figures below are what is tested

import keras  # noqa: E402

from keras_matrix.models.registry import workloads  # noqa: E402
from keras_matrix.models.workload import Request, UnsupportedWorkload  # noqa: E402

SMALL = {
    "mnist_mlp": {"image_size": 8},
    "cifar10_cnn": {"image_size": 12},
    "lstm": {"sequence_length": 4, "units": 8},
    "gru": {"sequence_length": 4, "units": 8},
    "lstm_text_generation": {"sequence_length": 4, "units": 8},
    "mnist_irnn": {"image_size": 3, "units": 8},
    "bert": {"sequence_length": 8},
    "decoder_lm": {"sequence_length": 8, "width": 16, "depth": 1, "heads": 2, "vocabulary": 50},
    **{name: {"max_length": 8, "layers": 1} for name in ("gpt2", "gemma", "llama", "mistral")},
    "vit_tiny": {"image_size": 16, "patch_size": 8, "depth": 1},
    "xception": {"image_size": 71},
    "fc": {"level": 2, "weight_size": 16},
    "finetune": {"image_size": 32, "base": "timed_wait", "step_time_ms": 1.0},
}


def trained(name: str) -> dict[str, object]:
    """Build, train one batch of two, predict it."""
    keras.utils.set_random_seed(0)
    try:
        built = workloads()[name](Request(SMALL.get(name, {"image_size": 32}), "synthetic", None))
    except UnsupportedWorkload as problem:
        return {"unsupported": str(problem)}
    compiles = keras.backend.backend() == "jax"  # which has no other fast way; the others train one batch eagerly
    built.model.run_eagerly, built.model.jit_compile = not compiles, compiles
    x, y = built.samples(2, 0)
    loss = built.model.train_on_batch(x, y, return_dict=True)["loss"]
    output = keras.tree.flatten(built.model(x, training=False))[0]
    return {
        "loss": float(loss),
        "output_dtype": keras.backend.standardize_dtype(output.dtype),
        "output_rows": int(output.shape[0]),
    }


if __name__ == "__main__":
    keras.config.set_dtype_policy(sys.argv[1])
    print(json.dumps({name: trained(name) for name in sys.argv[2:]}))
