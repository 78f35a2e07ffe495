"""The workload catalog as data, read from `models/catalog.json` without importing `models`, and small presets of it.

Promise: reading the catalog imports neither Keras nor a backend. How a workload is built is not part of it; of a user's
own workload it has only the defaults of `user_workload`.

A preset is for comparisons without timing: every layer runs, within seconds.
Images are large enough that the last normalisation of a deep network still averages over some tens of values: over two
or three values it amplifies rounding beyond any tolerance.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from keras_matrix.records.codec import CodecError, loads
from keras_matrix.records.settings import DATA_SOURCES, FEEDS, HOST_FED, PIPELINE, Scalar, is_script
from keras_matrix.records.text import escaped
from keras_matrix.runner.errors import InfrastructureError
from keras_matrix.runner.matrix.grammar import DEFAULTS, ENTRY_KEYS, NAME, ValueRule, workload_name_problem

CATALOG_VERSION = 1
# Entry points by which packages bring workloads: `NAME = "package.module:function"`.
GROUP = "keras_matrix.workloads"
CATALOG_PATH = Path(__file__).parents[2] / "models" / "catalog.json"
USER_BATCH_SIZE = 32
USER_SAMPLES = 1000
FAMILIES_OF_KERAS_HUB = frozenset({"language_models", "image_models"})
REQUIRED = ("family", "summary", "batch_size", "samples")
OPTIONAL = (
    "input_shape",
    "output_shape",
    "parameters",
    "forward_flops_per_sample",
    "optimizer",
    "loss",
    "feed",
    "twin",
    "generates",
)
BATCH_SIZE = 8
# XLA has no fast float64 convolution: xception, at the smallest image it takes, would need minutes more.
BATCH_SIZES: Mapping[str, int] = {"xception": 4}
DEEP_IMAGE: Mapping[str, Scalar] = {"image_size": 64}
SHORT_SEQUENCE: Mapping[str, Scalar] = {"max_length": 16}
SMALL: Mapping[str, Mapping[str, Scalar]] = {
    "mnist_mlp": {"image_size": 8},
    "cifar10_cnn": {"image_size": 16},
    "lstm": {"sequence_length": 10, "units": 32},
    "gru": {"sequence_length": 10, "units": 32},
    "lstm_text_generation": {"sequence_length": 10, "units": 32},
    "mnist_irnn": {"image_size": 6, "units": 32},
    "resnet50": DEEP_IMAGE,
    "vgg16": {"image_size": 32},
    "xception": {"image_size": 71},
    "mobilenet_v3_small": DEEP_IMAGE,
    "efficientnet_v2_b0": DEEP_IMAGE,
    "resnet50_subclass": DEEP_IMAGE,
    "bert": {"sequence_length": 16},
    "decoder_lm": {"sequence_length": 16, "width": 64, "depth": 2, "vocabulary": 512},
    "gpt2": SHORT_SEQUENCE,
    "gemma": SHORT_SEQUENCE,
    "llama": SHORT_SEQUENCE,
    "mistral": SHORT_SEQUENCE,
    "sam": {},
    "stable_diffusion_3": {},
    "vit_tiny": {"image_size": 32, "patch_size": 8, "depth": 3},
    "fc": {"level": 3, "weight_size": 64},
    "finetune": DEEP_IMAGE,
}


@dataclass(frozen=True, slots=True)
class CatalogWorkload:
    """A workload. Shapes exclude the batch; FLOPs are for the forward pass of one sample at default parameters.

    `twin` is the phase that its twin in plain framework code does; None without a twin.
    """

    name: str
    family: str
    summary: str
    batch_size: int
    samples: int
    data: tuple[str, ...]
    params: Mapping[str, ValueRule] = field(default_factory=dict)
    input_shape: Any = None
    output_shape: Any = None
    parameters: int | None = None
    forward_flops_per_sample: int | None = None
    optimizer: str | None = None
    loss: str | None = None
    corrections: tuple[str, ...] = ()
    feed: str | None = None
    twin: str | None = None
    generates: bool = False

    @property
    def is_users(self) -> bool:
        """Return whether this is a user's `package.module:function` or program, not a workload of the catalog."""
        return ":" in self.name

    @property
    def has_pipeline(self) -> bool:
        """Return whether it reads its samples by an input pipeline, which is then its default feed."""
        return self.feed == PIPELINE

    @property
    def own_defaults(self) -> dict[str, Scalar]:
        """Return the settings that have the workload's own default."""
        feed: dict[str, Scalar] = {} if self.feed is None else {"feed": self.feed}
        steps: dict[str, Scalar] = {"steps_per_epoch": "seed"} if is_script(self.name) else {}
        return {"batch_size": self.batch_size, "samples": self.samples, **feed, **steps}


@dataclass(frozen=True, slots=True)
class Catalog:
    """The named workloads."""

    workloads: Mapping[str, CatalogWorkload]


def user_workload(name: str) -> CatalogWorkload:
    """Return a user's `package.module:function` or program with the defaults that apply before it runs."""
    if is_script(name):
        return CatalogWorkload(name, "user", "your own program", 1, 1, DATA_SOURCES, feed=HOST_FED)
    return CatalogWorkload(name, "user", "your own workload", USER_BATCH_SIZE, USER_SAMPLES, DATA_SOURCES)


@dataclass(frozen=True, slots=True)
class PackageWorkload:
    """A workload that an installed package brings: the entry point `name = function` of the group `GROUP`.

    `package` is the name and version of its distribution; `problem` says why it cannot be used.
    """

    name: str
    function: str
    package: str
    problem: str | None = None


def of_packages(built_in: Collection[str]) -> list[PackageWorkload]:
    """Return the workloads of installed packages, by name; read from their metadata, which imports none of them."""
    from importlib import metadata

    points = sorted(metadata.entry_points(group=GROUP), key=lambda point: (point.name, point.value))
    named = [(point, f"{point.dist.name} {point.dist.version}" if point.dist else "?") for point in points]
    origins = {point.name: [text for other, text in named if other.name == point.name] for point in points}
    return [
        PackageWorkload(
            point.name, point.value, package, _package_problem((point.name, point.value), origins[point.name], built_in)
        )
        for point, package in named
    ]


def names_of_packages(catalog: Catalog) -> list[str]:
    """Return the names by which a matrix can use the workloads of installed packages."""
    return [workload.name for workload in of_packages(catalog.workloads) if workload.problem is None]


def _package_problem(brought: tuple[str, str], packages: Sequence[str], built_in: Collection[str]) -> str | None:
    name, function = brought
    if name in built_in:
        return f"{name} of {packages[0]} is also a built-in workload of keras-matrix; use {function}"
    if len(packages) > 1:
        return f"{name} is brought by {' and by '.join(packages)}; use {function} or the other's module:function"
    if workload_name_problem(function) is not None or not NAME.fullmatch(name):
        return f"{name} of {packages[0]} must be a lower-case name with module:function, got {escaped(function)!r}"
    return None


def needs_keras_hub(name: str) -> bool:
    """Return whether a workload is a model of KerasHub; False for a user's, of which that is not known."""
    workload = load().workloads.get(name)
    return workload is not None and workload.family in FAMILIES_OF_KERAS_HUB


@cache
def load(path: Path = CATALOG_PATH) -> Catalog:
    """Read the catalog, once. Raises `InfrastructureError` when the installation's file is missing or broken."""
    try:
        return parse(loads(path.read_bytes()))
    except OSError as error:
        raise InfrastructureError(f"{path}: cannot be read ({error.strerror}); install the program again") from error
    except (CodecError, KeyError, TypeError, ValueError) as error:
        raise InfrastructureError(f"{path}: not a catalog ({error}); generate or install it again") from error


def parse(data: Mapping[str, Any]) -> Catalog:
    """Build the catalog from plain JSON values. Raises `ValueError`, `KeyError` or `TypeError` for other data."""
    if data["version"] != CATALOG_VERSION:
        raise ValueError(f"version must be {CATALOG_VERSION}, got {data['version']!r}")
    return Catalog({name: _workload(name, item) for name, item in data["workloads"].items()})


def _workload(name: str, item: Mapping[str, Any]) -> CatalogWorkload:
    for word in (name, *item["params"]):
        if not NAME.fullmatch(word):
            raise ValueError(f"{word!r} is not a valid name")
    if reserved := item["params"].keys() & {*DEFAULTS, *ENTRY_KEYS, "backend"}:
        raise ValueError(f"{name}: parameter {min(reserved)!r} must not be named like a setting")
    if item.get("feed") not in (None, *FEEDS):
        raise ValueError(f"{name}: feed must be one of {', '.join(FEEDS)}, got {item['feed']!r}")
    values: dict[str, Any] = {key: item[key] for key in REQUIRED} | {key: item.get(key) for key in OPTIONAL}
    values |= {"data": tuple(item["data"]), "corrections": tuple(item.get("corrections") or ())}
    values["generates"] = bool(item.get("generates"))
    return CatalogWorkload(name=name, params={word: _param(param) for word, param in item["params"].items()}, **values)


def _param(item: Mapping[str, Any]) -> ValueRule:
    kind: str = item["type"]
    default: Scalar = item["default"]
    meaning = item.get("meaning") or ""
    if choices := tuple(item.get("choices") or ()):
        return ValueRule(choices=choices, default=default, meaning=meaning)
    rule = ValueRule(kind, item.get("minimum"), item.get("maximum"), default=default, meaning=meaning)
    if kind not in ("int", "float", "bool", "str") or not rule.accepts(default):
        raise ValueError(f"default {default!r} is not {kind}")
    return rule


def small(workload: str) -> dict[str, Scalar]:
    """Return the parameters of a workload's small preset; an empty dict for a user's own workload."""
    return dict(SMALL.get(workload, {}))


def small_batch(workload: str) -> int:
    """Return the batch size of a workload's small preset, or of a user's own workload."""
    return BATCH_SIZES.get(workload, BATCH_SIZE)
