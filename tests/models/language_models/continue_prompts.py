"""Run in a process with KERAS_BACKEND set: continues prompts with each architecture, prints the results as JSON.

TensorFlow (unless it is the backend) and tensorflow-text cannot be imported, as in the images without them.
"""

import importlib.abc
import json
import sys
import tempfile
import warnings
from dataclasses import replace

warnings.simplefilter("ignore")  # third-party warnings; the tokens below are what is tested


class Missing(importlib.abc.MetaPathFinder):
    """Lets imports of packages fail, as if they were not installed."""

    def __init__(self, names):
        self.names = names

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


import keras  # noqa: E402

absent = {"tensorflow_text"} | ({"tensorflow"} if keras.backend.backend() != "tensorflow" else set())
sys.meta_path.insert(0, Missing(absent))

import numpy as np  # noqa: E402

from keras_matrix.models.language_models import building  # noqa: E402
from keras_matrix.models.registry import workloads  # noqa: E402
from keras_matrix.models.workload import Request, UnsupportedWorkload  # noqa: E402
from keras_matrix.runner.cell import backends  # noqa: E402
from keras_matrix.runner.cell.generation import OwnLoop, generated  # noqa: E402

PROMPT, LONGEST = 5, 12


def continued(name):
    """Return whether the workload, a bare call of KerasHub with the same weights and our own loop agree."""
    keras.utils.set_random_seed(0)
    params = {"prompt_length": PROMPT, "max_length": LONGEST}
    built = workloads()[name](Request(params, "synthetic", None, batch_size=2, phase="generate"))
    prompts, _ = built.samples(2, 0)
    import keras_hub

    config = built.model.backbone.get_config()
    backbone = type(built.model.backbone)(
        **{k: v for k, v in config.items() if k not in ("name", "trainable", "dtype")}
    )
    bare = getattr(keras_hub.models, f"{building.NAMES[name]}CausalLM")(backbone=backbone, preprocessor=None)
    bare.backbone.set_weights(built.model.backbone.get_weights())
    bare.compile(sampler="greedy")
    ours = generated(built.model, prompts)["token_ids"]
    theirs = bare.generate({key: value.copy() for key, value in prompts.items()}, stop_token_ids=None)["token_ids"]
    own = OwnLoop(backends.load(keras.backend.backend()), built.model, PROMPT)
    positions = [keras.ops.convert_to_tensor(at) for at in range(PROMPT, LONGEST)]
    _, times_s, tokens = own._one_pass(prompts["token_ids"], positions)
    shape = building.shape_of_model(name, built.model)
    return {
        "shape": ours.shape,
        "prompt_unchanged": bool(np.array_equal(ours[:, :PROMPT], prompts["token_ids"][:, :PROMPT])),
        "equals_bare_call": bool(np.array_equal(ours, theirs)),
        "own_loop_equals": bool(np.array_equal(tokens, ours)),
        "steps": len(times_s),
        "parameters_as_by_formula": built.model.count_params() == shape.parameters,
        "different_tokens": len(set(ours[:, PROMPT:].ravel().tolist())) > 1,
    }


def loaded(name):
    """Return whether a preset, saved without a tokenizer and found in the user's folder, has weights and shape.

    Also return why it is refused if too little memory is free.
    """
    params = {"prompt_length": PROMPT, "max_length": LONGEST}
    saved = workloads()[name](Request({**params, "layers": 1}, "synthetic", None, phase="generate")).model
    with tempfile.TemporaryDirectory() as folder:
        saved.save_to_preset(f"{folder}/mine")
        request = Request({**params, "preset": "mine"}, "synthetic", None, phase="generate", folders=(folder,))
        model = workloads()[name](request).model
        try:
            workloads()[name](replace(request, free_bytes=1 << 16))
            refused = ""
        except UnsupportedWorkload as error:
            refused = str(error)
    pairs = zip(saved.get_weights(), model.get_weights(), strict=True)
    equal = model.preprocessor is None and all(np.array_equal(one, other) for one, other in pairs)
    return [equal, refused.partition(",")[0]]


if __name__ == "__main__":
    found = {name: continued(name) for name in sys.argv[1:]}
    print(json.dumps({"found": found, "preset": loaded("llama"), "imported": sorted(absent & set(sys.modules))}))
