"""A cost model: what was learned by backend and kind of operation, its errors, its file, and its predictions.

The file is strict JSON with a version, and holds numbers only: reading one runs no code. On a device of the training
data a kind is predicted with its regression or its roofline, whichever `errors.choose` has chosen; on another device
with the roofline that all measured devices share, from that device's measured peaks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from keras_matrix.analysis.whatif.cost.errors import KindErrors, Predictor, is_useless
from keras_matrix.analysis.whatif.cost.kinds import kind_of
from keras_matrix.analysis.whatif.cost.operations import FEATURES, cores_of, ideal_of, is_operation, product_of, row_of
from keras_matrix.analysis.whatif.cost.roofline import DevicePeaks, Fitted
from keras_matrix.analysis.whatif.cost.trees import DecisionTree, factor
from keras_matrix.analysis.whatif.graph import Header, Node
from keras_matrix.records.codec import CodecError, decode, loads

FORMAT = "keras-matrix cost model"
VERSION = 1
RETRAIN = "train it again with: runner costmodel train"


class CostModelError(ValueError):
    """A model file that cannot be used; the text names the file, what is wrong and what to do."""


@dataclass(frozen=True, slots=True)
class LearnedRoofline:
    """Overhead and efficiency of a kind; `device` is a number in `CostModel.devices`, None for other devices."""

    backend: str
    kind: str
    device: int | None
    overhead_s: float
    efficiency: float


@dataclass(frozen=True, slots=True)
class Regression:
    """Trees that predict the logarithm of the time over the roofline's time of the device, for a kind."""

    backend: str
    kind: str
    learning_rate: float
    trees: list[DecisionTree]


@dataclass(frozen=True, slots=True)
class TrainingData:
    """What a model was learned from. `sources` names its graphs; operations without FLOPs and bytes are not used."""

    sources: list[str]
    operations: int
    without_work: int
    time_s: float
    time_without_work_s: float


@dataclass(frozen=True, slots=True)
class CostModel:
    """Everything that was learned. `errors` has one row for each backend and kind."""

    format: str
    version: int
    features: list[str]
    folds: int
    data: TrainingData
    devices: list[DevicePeaks]
    rooflines: list[LearnedRoofline]
    regressions: list[Regression]
    errors: list[KindErrors]
    libraries: dict[str, str] = field(default_factory=dict)


def predict(model: CostModel, node: Node, peaks: DevicePeaks | None) -> float | None:
    """Return the time of an operation in seconds on the device with these peaks; None if the model cannot say.

    It cannot for a kind or backend that it has not seen, for work that is unknown, for what is not an operation, such
    as a wait or a collective, and where its held-out error is too large. `peaks` come from `known_device`, or for a new
    device from `roofline.device_peaks`.
    """
    if peaks is None or not is_operation(node):
        return None
    kind = str(kind_of(node.name))
    errors = errors_of(model, node, peaks)
    device = next((at for at, one in enumerate(model.devices) if one.identity == peaks.identity), None)
    if errors is None or (device is not None and errors.used is Predictor.NOTHING):
        return None
    if device is None and errors.new_device is not None and is_useless(errors.new_device):
        return None
    own = peaks if device is None else model.devices[device]
    ideal = ideal_of(node, own)
    learned = next(
        (one for one in model.rooflines if (one.backend, one.kind, one.device) == (own.backend, kind, device)), None
    )
    if ideal is None or learned is None:
        return None
    time_s = Fitted(learned.overhead_s, learned.efficiency).time_s(ideal)
    if device is None or errors.used is not Predictor.REGRESSION:
        return time_s
    row = row_of(node, own, device)
    trees = next((one for one in model.regressions if (one.backend, one.kind) == (own.backend, kind)), None)
    return time_s * factor(trees.trees, trees.learning_rate, row) if trees and row else None


def predictor(model: CostModel, peaks: DevicePeaks | None) -> Callable[[Node], float | None]:
    """Return `predict` for one device, as what-ifs take it."""
    return partial(predict, model, peaks=peaks)


def errors_of(model: CostModel, node: Node, peaks: DevicePeaks) -> KindErrors | None:
    """Return the held-out errors of an operation's kind, None if the model does not have it."""
    kind = str(kind_of(node.name))
    return next((one for one in model.errors if (one.backend, one.kind) == (peaks.backend, kind)), None)


def known_device(model: CostModel, header: Header) -> DevicePeaks | None:
    """Return the device of the training data on which a graph was traced; None if it is another one."""
    identity = (header.backend, product_of(header), cores_of(header))
    return next((one for one in model.devices if one.identity == identity), None)


def parse(text: bytes, path: str) -> CostModel:
    """Return the model of a file's text; `path` is only named in errors. Raises `CostModelError`."""
    try:
        data = loads(text)
    except CodecError as error:
        raise CostModelError(f"{path}: is damaged: {error}; {RETRAIN}") from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise CostModelError(f"{path}: is not a cost model; make one with: runner costmodel train")
    if data.get("version") != VERSION or data.get("features") != list(FEATURES):
        found = data.get("version")
        raise CostModelError(f"{path}: has version {found!r}, this program reads {VERSION}; {RETRAIN}")
    try:
        model = decode(CostModel, data, "model")
    except CodecError as error:
        raise CostModelError(f"{path}: is damaged: {error}; {RETRAIN}") from error
    if problem := next(_problems(model), None):
        raise CostModelError(f"{path}: is damaged: {problem}; {RETRAIN}")
    return model


def _problems(model: CostModel) -> Iterator[str]:
    for at, device in enumerate(model.devices):
        if any(rate <= 0 for rate in (*device.flop_per_s.values(), device.byte_per_s or 1.0)):
            yield f"model.devices[{at}]: its peaks must be positive"
    for at, regression in enumerate(model.regressions):
        for number, tree in enumerate(regression.trees):
            if problem := tree.problem(len(FEATURES)):
                yield f"model.regressions[{at}].trees[{number}]: {problem}"
    for at, roofline in enumerate(model.rooflines):
        if roofline.efficiency <= 0 or roofline.overhead_s < 0:
            yield f"model.rooflines[{at}]: efficiency must be positive, and overhead_s not negative"
        if roofline.device is not None and not 0 <= roofline.device < len(model.devices):
            yield f"model.rooflines[{at}].device: must be from 0 to {len(model.devices) - 1}, got {roofline.device}"
