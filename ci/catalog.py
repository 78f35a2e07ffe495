"""Writes and checks models/catalog.json: the description of the workloads that the host reads without importing Keras.

Every figure comes from the built model at its default parameters. FLOPs are those of the forward pass on one sample:
two per multiply-add of every matrix product and convolution (loops included), as PyTorch's counter reports them;
element-wise work is not counted.

Usage: python ci/catalog.py            write catalog.json
       python ci/catalog.py --check    check whether it is current
       python ci/catalog.py --parts    write keras_parts.json: what each layer and operation of the installed Keras is
                                       called with, found by trying (three minutes)
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from keras_matrix.models.keras_parts import catalogue
from keras_matrix.models.registry import workloads
from keras_matrix.models.twins import PHASES
from keras_matrix.models.workload import Param, Request, Workload
from keras_matrix.records.parts import KIND_OF_PART
from keras_matrix.runner.matrix.catalog import CATALOG_PATH
from keras_matrix.runner.matrix.parts import PARTS_PATH

VERSION = 1


def catalog() -> dict[str, Any]:
    """The catalogue as data. Needs Keras on its torch backend; raises RuntimeError on another."""
    import keras

    if keras.backend.backend() != "torch":
        raise RuntimeError(f"the catalogue is counted by PyTorch. Received: KERAS_BACKEND={keras.backend.backend()}")
    return {"version": VERSION, "workloads": {name: entry(item) for name, item in workloads().items()}}


def entry(item: Workload) -> dict[str, Any]:
    """One workload's entry, after building it at its defaults."""
    import keras

    keras.backend.clear_session()
    built = item(Request({}, "synthetic", None))
    x, _ = built.samples(1, 0)
    flops, output_shape = forward(built.model, x)
    return {
        "family": item.family,
        "summary": item.summary,
        "batch_size": item.batch_size,
        "samples": item.samples,
        **({} if item.feed is None else {"feed": item.feed}),
        **({"twin": PHASES[item.name]} if item.name in PHASES else {}),
        **({"generates": True} if item.generates else {}),
        "data": list(item.data),
        "params": {param.name: _param(param) for param in item.params},
        "input_shape": list(_first(x).shape[1:]),
        "output_shape": output_shape,
        "parameters": built.model.count_params(),
        "forward_flops_per_sample": flops,
        "optimizer": _optimizer(built.model.optimizer),
        "loss": _loss(built.model.loss),
        "corrections": list(item.corrections),
    }


def _first(x: Any) -> Any:
    """The first input, in the order of the workload; `keras.tree` would sort the names of several."""
    return next(iter(x.values())) if isinstance(x, dict) else x


def forward(model: Any, x: Any) -> tuple[int, list[int]]:
    """FLOPs of one forward pass over `x`, and the output's shape without its batch dimension; of several, the first.

    Masked products are counted too, also under a causal mask, as the plain formula computes them.
    """
    import keras

    from keras_matrix.models.flops.torch import counted, without_gradients

    outputs: list[Any] = []
    with without_gradients(model):
        flops = counted(lambda: outputs.append(model(x, training=False)))
    return flops, [int(size) for size in keras.tree.flatten(outputs[0])[0].shape[1:]]


def text(data: dict[str, Any]) -> str:
    """The content of the file."""
    return json.dumps(data, indent=1, sort_keys=True, allow_nan=False) + "\n"


def parts() -> dict[str, Any]:
    """The layers and operations of the installed Keras as data, and its version."""
    import keras

    return {"keras": keras.__version__, **{kind: dict(catalogue(kind)) for kind in KIND_OF_PART.values()}}


def main(arguments: list[str]) -> int:
    """Write a catalogue, or check that of the workloads (0 current, 1 not)."""
    if arguments not in ([], ["--check"], ["--parts"]):
        print(f"usage: python ci/catalog.py [--check | --parts]. Received: {' '.join(arguments)}", file=sys.stderr)
        return 2
    os.environ["KERAS_BACKEND"] = "torch"
    if arguments == ["--parts"]:
        PARTS_PATH.write_text(text(parts()), encoding="utf-8")
        return 0
    current = text(catalog())
    if not arguments:
        CATALOG_PATH.write_text(current, encoding="utf-8")
    elif not CATALOG_PATH.is_file() or CATALOG_PATH.read_text(encoding="utf-8") != current:
        print("models/catalog.json is not current; run: python ci/catalog.py", file=sys.stderr)
        return 1
    return 0


def _param(param: Param) -> dict[str, Any]:
    return {
        "type": type(param.default).__name__,
        "default": param.default,
        "minimum": param.minimum,
        "maximum": param.maximum,
        "choices": list(param.choices),
        "meaning": param.meaning,
    }


def _optimizer(optimizer: Any) -> str:
    config = optimizer.get_config()
    rate = config["learning_rate"]
    if isinstance(rate, dict):
        decay = rate["config"]
        return f"{type(optimizer).__name__}({decay['initial_learning_rate']:g} / (1 + {decay['decay_rate']:g} * step))"
    return f"{type(optimizer).__name__}({rate:g})"


def _loss(loss: Any) -> str:
    if isinstance(loss, str):
        return loss
    name: str = loss.name
    return f"{name} from logits" if getattr(loss, "from_logits", False) else name


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
