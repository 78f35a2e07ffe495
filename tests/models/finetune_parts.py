"""Run in a process with KERAS_BACKEND set: parts of the fine-tuning workload that need Keras; prints JSON.

Usage: python finetune_parts.py CHECK FOLDER
"""

import json
import os
import sys
import warnings
from pathlib import Path

warnings.simplefilter("ignore")  # third-party warnings at import; the figures below are what is tested

import h5py  # noqa: E402
import keras  # noqa: E402
import numpy as np  # noqa: E402
from keras.src.legacy.saving import legacy_h5_format  # noqa: E402
from keras.src.utils import file_utils  # noqa: E402

from keras_matrix.models.layers import pretrained  # noqa: E402
from keras_matrix.models.layers.pretrained import BASES  # noqa: E402
from keras_matrix.models.registry import workloads  # noqa: E402
from keras_matrix.models.workload import Request, UnsupportedWorkload  # noqa: E402

MODULES = {
    "mobilenet": "mobilenet",
    "mobilenet_v2": "mobilenet_v2",
    "resnet50": "resnet50",
}
SIZE = 32


def built(folder: str, **params: object) -> object:
    """Build the workload with small images."""
    defaults = {"image_size": SIZE, "base": "mobilenet_v3_small", "input_workers": 0}
    return workloads()["finetune"](Request({**defaults, **params}, "synthetic", folder, batch_size=4))


def preprocessing(folder: str) -> dict:
    """Compare pixels on the host and on the device with what keras.applications does to them, by base."""
    pixels = np.random.default_rng(0).integers(0, 256, (2, SIZE, SIZE, 3), dtype=np.uint8)
    found = {}
    for name, base in BASES.items():
        scaling = base.scaling
        host = scaling.on_host(pixels)
        layer = pretrained.ChannelScaling(scaling.scale, scaling.shift, scaling.reverses)
        device = keras.ops.convert_to_numpy(layer(pixels))
        if name in MODULES:
            module = getattr(keras.applications, MODULES[name])
            expected = module.preprocess_input(pixels.astype(np.float32))
        else:  # building networks takes minutes on JAX, and one backend shows what they expect
            expected = as_in_the_network(base, pixels) if keras.backend.backend() == "torch" else host
        found[name] = [float(np.abs(one - expected).max()) for one in (host, device)]
    return found


def as_in_the_network(base: object, pixels: np.ndarray) -> np.ndarray:
    """Return the pixels after the first layers of a network that scales them itself."""
    make = getattr(keras.applications, base.application)
    network = make(weights=None, include_top=False, input_shape=(SIZE, SIZE, 3), include_preprocessing=True)
    values = pixels.astype(np.float32)
    for layer in network.layers[1:]:
        if not isinstance(layer, keras.layers.Rescaling | keras.layers.Normalization):
            break
        values = layer(values)
    return keras.ops.convert_to_numpy(values)


def files(folder: str) -> dict:
    """Return, by base, our name of the published weights, and the one that Keras asks for."""
    asked = []

    def get_file(name: str, url: str, **options: object) -> str:
        asked.append([name, url])
        raise FileNotFoundError

    file_utils.get_file = get_file
    found = {}
    for name, base in BASES.items():
        for size in (64, 160, 224) if name in ("mobilenet", "mobilenet_v2") else (64,):
            try:
                make = getattr(keras.applications, base.application)
                make(weights="imagenet", include_top=False, input_shape=(size, size, 3))
            except FileNotFoundError:
                file = base.file(size)
                found[f"{name} {size}"] = [file, f"{pretrained._PUBLISHED_AT}{base.folder}/{file}", *asked.pop()]
    return found


def weights(folder: str) -> dict:
    """Save weights in every format, load them again, and compare; then damaged, foreign and missing files."""
    other = BASES["mobilenet_v3_small"].network(SIZE)
    path = Path(folder)
    other.save_weights(path / "own.weights.h5")
    other.save(path / "own.keras")
    (path / "models").mkdir()
    published = path / "models" / BASES["mobilenet_v3_small"].file(SIZE)
    with h5py.File(published, "w") as file:
        legacy_h5_format.save_weights_to_hdf5_group(file, other)
    (path / "damaged.weights.h5").write_bytes(b"no weights")
    BASES["mobilenet"].network(SIZE).save_weights(path / "foreign.weights.h5")
    found = {}
    for given in ("own.weights.h5", "own.keras", "imagenet"):
        network = next(one for one in built(folder, base_model=given).model.layers if one.name == other.name)
        pairs = zip(network.get_weights(), other.get_weights(), strict=True)
        found[given] = all((first == second).all() for first, second in pairs)
        assert not network.trainable_weights
    file_utils.get_file = None
    for given in ("damaged.weights.h5", "foreign.weights.h5", "missing.weights.h5", "own.txt"):
        (path / "own.txt").write_text("text")
        try:
            built(folder, base_model=given)
        except (UnsupportedWorkload, ValueError) as problem:
            found[given] = str(problem)
    return found


def offline(folder: str) -> dict:
    """Ask for published weights that cannot be downloaded."""

    def get_file(name: str, url: str, **options: object) -> str:
        raise Exception(f"URL fetch failure on {url}: None -- no network")  # noqa: TRY002  # as Keras does

    keras.utils.get_file = get_file
    try:
        built(folder, base="mobilenet", base_model="imagenet")
    except ValueError as problem:
        return {"message": str(problem)}
    return {}


def checkpoint(folder: str) -> dict:
    """Train a step, save, load as a base, and compare the trained layers."""
    path = Path(folder) / "saved"
    one = built(folder, checkpoint_path=str(path), base="mobilenet_v3_small")
    x, y = one.samples(4, 0)
    one.model.fit(x, y, batch_size=4, verbose=0)
    one.finish()
    (saved,) = path.iterdir()
    loaded = keras.saving.load_model(saved)
    again = built(folder, base_model=str(saved))
    frozen = [next(layer for layer in m.layers if "Mobile" in layer.name) for m in (one.model, again.model)]
    return {
        "file": saved.name,
        "equal": bool(np.allclose(loaded.predict(x, verbose=0), one.model.predict(x, verbose=0), atol=1e-5)),
        "base": all((a == b).all() for a, b in zip(frozen[0].get_weights(), frozen[1].get_weights(), strict=True)),
        "trained": len(one.model.trainable_weights),
    }


def random_base(folder: str) -> dict:
    """Train three steps on a base with random weights: which weights change, and how large its features are."""
    found = {}
    for base in ("mobilenet", "mobilenet_v2", "mobilenet_v3_small"):
        one = built(folder, base=base, image_size=64)
        x, y = one.samples(12, 0)
        before = [keras.ops.convert_to_numpy(weight) for weight in one.model.trainable_weights]
        one.model.fit(x, y, batch_size=4, verbose=0)
        after = [keras.ops.convert_to_numpy(weight) for weight in one.model.trainable_weights]
        pooled = next(layer for layer in one.model.layers if "pooling" in layer.name).output
        features = keras.Model(one.model.inputs, pooled).predict(x, verbose=0)
        found[base] = {
            "changed": [bool((old != new).any()) for old, new in zip(before, after, strict=True)],
            "size": float(np.sqrt((features**2).mean())),
        }
    return found


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](sys.argv[2])), flush=True)
    os._exit(0)
