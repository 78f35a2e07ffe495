"""Run in a process with KERAS_BACKEND set: compares the image models with KerasHub's, prints the results as JSON."""

import json
import warnings
from dataclasses import replace

warnings.simplefilter("ignore")  # third-party warnings; the figures below are what is tested

import keras  # noqa: E402
import numpy as np  # noqa: E402

from keras_matrix.models.image_models import building  # noqa: E402
from keras_matrix.models.image_models.shapes import PARTS, SAM_SIZES, STABLE_DIFFUSION_3_SIZES  # noqa: E402
from keras_matrix.models.language_models.hub import keras_hub  # noqa: E402
from keras_matrix.models.registry import workloads  # noqa: E402
from keras_matrix.models.workload import Request, UnsupportedWorkload  # noqa: E402

TINY, DIFFUSER = SAM_SIZES["tiny"], STABLE_DIFFUSION_3_SIZES["tiny"]


def masks_are_those_of_keras_hub() -> bool:
    """Return whether our model and `SAMImageSegmenter.predict` with the same layers give the same masks and scores."""
    hub, layers = keras_hub(), building.sam_layers(TINY)
    x, _ = building.sam_samples(TINY)(2, 0)
    masks, scores = building.segmenter(*layers)(x, training=False)
    names = ("image_encoder", "prompt_encoder", "mask_decoder")
    task = hub.models.SAMImageSegmenter(hub.models.SAMBackbone(**dict(zip(names, layers, strict=True))))
    task.compile(run_eagerly=True)
    found = task.predict(x, verbose=0)
    pairs = ((masks, found["masks"]), (scores, found["iou_pred"]))
    return all(np.allclose(keras.ops.convert_to_numpy(ours), theirs, atol=1e-5) for ours, theirs in pairs)


def sam_counts() -> dict[str, list[bool]]:
    """Return whether the weights, and those that are trained, of each part are as many as by formula."""
    expected = {"all": TINY.parameters, "image_encoder": TINY.encoder_parameters}
    counts = {}
    for part in PARTS:
        model = workloads()["sam"](Request({"part": part}, "synthetic", None)).model
        trained = sum(int(np.prod(one.shape)) for one in model.trainable_variables)
        counts[part] = [model.count_params() == expected[part], trained == TINY.trained(part)]
    return counts


def diffuser_counts() -> list[bool]:
    """Return whether both versions of Stable Diffusion 3 have as many weights as by formula."""
    shapes = (DIFFUSER, replace(DIFFUSER, normalizes=True))
    return [building.diffuser(shape).count_params() == shape.parameters for shape in shapes]


def velocity_leads_from_latent_to_noise() -> list[bool]:
    """Return whether each latent is between its two ends, at its time on the line between them."""
    x, velocity = building.diffusion_samples(DIFFUSER)(4, 0)
    time = x["timestep"].reshape(-1, 1, 1, 1) / building.TIMES
    latent, noise = x["latent"] - time * velocity, x["latent"] + (1 - time) * velocity
    return [bool(abs(end).max() < 1 + 1e-6) for end in (latent, noise)] + [len(np.unique(time)) == len(time)]


def refusal(name: str, **params: object) -> str:
    """Return why a workload with 1 GiB of free memory is unsupported."""
    try:
        workloads()[name](Request(params, "synthetic", None, free_bytes=1 << 30))
    except UnsupportedWorkload as problem:
        return str(problem)
    return "supported"


if __name__ == "__main__":
    found = {
        "masks": masks_are_those_of_keras_hub(),
        "sam": sam_counts(),
        "diffuser": diffuser_counts(),
        "velocity": velocity_leads_from_latent_to_noise(),
        "too_large": refusal("stable_diffusion_3", size="medium"),
    }
    print(json.dumps(found))
