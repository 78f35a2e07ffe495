"""Fine-tuning of an image classifier on a data set on disk: the workload of the input pipelines.

The options have the names of "Analyzing Input Pipeline Stalls of Fine-tuning Workload in TensorFlow". Corrections
against that work: the network's own preprocessing of pixels, several epochs over a short data set, and any backend.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from keras_matrix.models.workload import Built, Param, Request, UnsupportedWorkload, fed_by_pipeline, workload
from keras_matrix.records.instruments.input_use import MOST_PREFETCH

SYNTHETIC_CLASSES = 1000
HIDDEN_UNITS = 1024
STAND_IN = "timed_wait"
# Named here and in models.layers.pretrained, because the registry must not import Keras.
BASES = (
    "mobilenet",
    "mobilenet_v2",
    "mobilenet_v3_small",
    "mobilenet_v3_large",
    "resnet50",
    "efficientnet_v2_b0",
    STAND_IN,
)
PREPROCESSING = "pixels were not preprocessed as the network's weights require; now by its own preprocessing"
RAN_DRY = "several epochs ended when the data set was read once; the pipeline now starts again from its beginning"

_MODEL = (
    Param("base", "mobilenet", "Frozen network; timed_wait: a stand-in device that uses no CPU.", choices=BASES),
    Param("base_model", "none", "Weights of the base: none (random), imagenet, or a *.weights.h5 or *.keras file."),
    Param("step_time_ms", 40.0, "Base timed_wait: the time of its step.", minimum=0.0, maximum=60_000.0),
    Param("image_size", 224, "Height and width of the image, in pixels.", minimum=32, maximum=1024),
    Param("checkpoint_path", "", "Folder for the trained model, BACKEND.keras; empty: not saved."),
)
_DATA = (
    Param("dataset_path", "", "Folder of class folders with JPEG files, or of record files; empty: synthetic."),
    Param("dataset_size", 50_000, "Samples of the data set; of the default as many as there are.", minimum=1),
    Param("shuffle", "window", "Order of samples: of runs of neighbours, of single ones, none.",
          choices=("window", "global", "none")),
    Param("bad_images", "fail", "An image that cannot be decoded ends the cell, or is replaced and counted.",
          choices=("fail", "skip")),
)  # fmt: skip
_PIPELINE = (
    Param("pipeline", "auto", "Library that loads batches; auto: the backend's own, on JAX grain.",
          choices=("auto", "grain", "tf_data", "data_loader", "py_dataset")),
    Param("input_workers", 2, "Workers that prepare batches; 0: the training thread.", minimum=0, maximum=256),
    Param("worker_kind", "auto", "Workers are threads or processes; auto: as usual for the pipeline.",
          choices=("auto", "thread", "process")),
    Param("prefetch", 2, "Batches ready ahead of those in the making.", minimum=0, maximum=MOST_PREFETCH),
    Param("cache", "none", "ram: decoded images are kept in memory.", choices=("none", "ram")),
    Param("decoder", "auto", "JPEG decoder; auto: the fastest one installed.",
          choices=("auto", "simplejpeg", "cv2", "pil", "tf_io")),
    Param("decode_scale", "full", "dct: decode at 1/2, 1/4 or 1/8 of the size if that is enough.",
          choices=("full", "dct")),
    Param("preprocess", "device", "Where pixels are scaled; device: uint8 is transferred, host: float32.",
          choices=("device", "host")),
    Param("fetch_delay_ms", 0.0, "Injected wait per sample when reading, to test the stall analysis.",
          minimum=0.0, maximum=10_000.0),
    Param("prepare_spin_ms", 0.0, "Injected Python computation per sample, to test the stall analysis.",
          minimum=0.0, maximum=10_000.0),
)  # fmt: skip


@fed_by_pipeline
@workload(batch_size=32, params=(*_MODEL, *_DATA, *_PIPELINE), corrections=(PREPROCESSING, RAN_DRY))
def finetune(request: Request) -> Built:
    """Fine-tuning of a frozen image network on JPEG files or record files, read by an input pipeline."""
    if not request.text("dataset_path"):
        return _synthetic(request)
    from keras_matrix.models.inputs.pipelines.pipeline import opened, pipeline_of

    images = opened(request)
    model = _model(request, len(images.classes))
    pipeline = pipeline_of(request, images, _host_scaling(request))
    return Built(
        model,
        pipeline.samples,
        data_is_real=True,
        pipeline=pipeline,
        finish=_checkpoint(request, model),
    )


def _synthetic(request: Request) -> Built:
    """Return the workload without files: uint8 pixels, or scaled ones if they are scaled on the host."""
    from keras_matrix.models.inputs import synthetic
    from keras_matrix.models.inputs.pipelines.pipeline import NoDataset

    model, scaling = _model(request, SYNTHETIC_CLASSES), _host_scaling(request)
    shape = model.input_shape[1:]

    def samples(count: int, seed: int) -> tuple[Any, Any]:
        pixels = synthetic.pixels(count, shape, seed)
        x = pixels if scaling is None else scaling.on_host(pixels)
        return x, synthetic.labels(count, SYNTHETIC_CLASSES, seed)

    pipeline = NoDataset(samples, request.batch_size, request.seed)
    return Built(model, samples, pipeline=pipeline, finish=_checkpoint(request, model))


def _model(request: Request, classes: int) -> Any:
    """Return the compiled model: scaling of pixels (if on the device), frozen base, pooling, two dense layers."""
    import keras

    from keras_matrix.models.layers.heads import float_logits

    size, on_device = request.integer("image_size"), request.text("preprocess") == "device"
    inputs = keras.Input((size, size, 3), dtype="uint8" if on_device else "float32")
    if request.text("base") == STAND_IN:
        return _stand_in(request, inputs)
    logits = keras.layers.Dense(classes)(_features(request, inputs))
    model = keras.Model(inputs, float_logits(logits), name="finetune")
    model.compile(
        optimizer=keras.optimizers.Adam(1e-4),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def _stand_in(request: Request, inputs: Any) -> Any:
    """Return a model that waits, and predicts the label as one number from the mean colour.

    With an output per class, PyTorch's threads would share the loss of 32 x 1000 values, and use 10 ms of CPU time.
    """
    import keras

    from keras_matrix.models.layers.heads import float_logits
    from keras_matrix.models.layers.stand_in import TimedWait

    if request.text("base_model") != "none":
        raise UnsupportedWorkload("base_model: timed_wait has no weights; use base_model: none")
    colours = TimedWait(float(request.params["step_time_ms"]) / 1e3)(inputs)
    model = keras.Model(inputs, float_logits(keras.layers.Dense(1)(colours)), name="finetune")
    model.compile(optimizer=keras.optimizers.Adam(1e-4), loss="mean_squared_error")
    return model


def _features(request: Request, inputs: Any) -> Any:
    import keras

    from keras_matrix.models.inputs.pipelines.dataset_path import found_path
    from keras_matrix.models.layers import pretrained

    base, size, weights = pretrained.BASES[request.text("base")], request.integer("image_size"), "base_model"
    network = base.network(size)
    if request.text(weights) == "imagenet":
        pretrained.load_published(network, base, size, request.dataset_dir)
    elif request.text(weights) != "none":
        pretrained.load_weights(network, found_path(request, weights))
    else:
        pretrained.scale_depthwise(network)
    if request.text("preprocess") == "device":
        scaling = base.scaling
        inputs = pretrained.ChannelScaling(scaling.scale, scaling.shift, scaling.reverses)(inputs)
    pooled = keras.layers.GlobalAveragePooling2D()(network(inputs, training=False))
    return keras.layers.Dense(HIDDEN_UNITS, activation="relu")(pooled)


def _host_scaling(request: Request) -> Any:
    """Return how pixels are scaled on the host; None if they are scaled on the device."""
    if request.text("preprocess") == "device":
        return None
    from keras_matrix.models.inputs.pipelines import pixels
    from keras_matrix.models.layers import pretrained

    return pixels.PLAIN if request.text("base") == STAND_IN else pretrained.BASES[request.text("base")].scaling


def _checkpoint(request: Request, model: Any) -> Callable[[], None] | None:
    """Return the function that saves the trained model, None without `checkpoint_path`.

    Raises `ValueError` unless files can be written there: better before training than after it.
    """
    if not request.text("checkpoint_path"):
        return None
    folder = Path(request.text("checkpoint_path")).expanduser()
    if not folder.is_absolute():
        raise ValueError(f"checkpoint_path: must be an absolute path, because a cell runs elsewhere, got {folder}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as problem:
        raise ValueError(f"checkpoint_path: must be a folder for new files, got {folder}: {problem}") from None

    def save() -> None:
        import keras

        unfinished = folder / f"{keras.backend.backend()}.{os.getpid()}.keras"
        model.save(unfinished)
        unfinished.replace(folder / f"{keras.backend.backend()}.keras")

    return save
