"""Reads the file of a cost model, and applies it to the device of a trace."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from keras_matrix.analysis.whatif.cost.model import CostModel, CostModelError, known_device, parse, predictor
from keras_matrix.analysis.whatif.cost.operations import product_of
from keras_matrix.analysis.whatif.graph import Header, Node
from keras_matrix.records.files import UnfitFile, read_plain
from keras_matrix.records.instruments.peaks import Peaks
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.whatif.cost_data import peaks_of_graph

LIMIT_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Applied:
    """A model for one device: its predictions in seconds, as what-ifs take them, and what they are based on."""

    predict: Callable[[Node], float | None]
    basis: str


def read(path: Path) -> CostModel:
    """Return the model of a file. Raises `UsageError`, which names the file and what is wrong with it."""
    try:
        return parse(read_plain(os.path.realpath(path), LIMIT_BYTES), str(path))
    except UnfitFile as error:
        raise UsageError(f"{path}: cannot be read: {error}; name the file of a cost model") from error
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from error
    except CostModelError as error:
        raise UsageError(str(error)) from error


def applied(path: Path, header: Header, peaks: Peaks | None) -> Applied:
    """Return a model for the device of a graph. `peaks` are those of its machine, None if they were not measured.

    Raises `UsageError` if the file cannot be used, or if the device is new and has no peaks.
    """
    model = read(path)
    if device := known_device(model, header):
        return Applied(predictor(model, device), f"{path}: learned on {device}")
    if peaks and (device := peaks_of_graph(header, peaks)):
        return Applied(predictor(model, device), f"{path}: {device} is new to the model, predicted from its peaks")
    known = "; ".join(map(str, model.devices))
    raise UsageError(
        f"{path}: was not learned on {header.backend} on {product_of(header)} (but on {known}), and the peaks of that"
        " machine were not measured; measure them there with runner roofline --measure"
    )
