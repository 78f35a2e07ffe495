"""Trace graphs of recorded files: every step replays to its own time, and is explained."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean

import pytest

from keras_matrix.analysis.whatif import engine
from keras_matrix.analysis.whatif.graph import Graph, NodeKind
from keras_matrix.analysis.whatif.program import program_of
from keras_matrix.analysis.whatif.replay import exclusive, replay
from tests.analysis.whatif.reconstruct.xplane.profiles import graph

DATA = Path(__file__).parent / "data"
NAMES = sorted(path.name for path in DATA.iterdir() if path.is_dir())
# Of `level` 11 square layers of 872 x 872 and a last one of 872 x 1.
GRADIENTS: Mapping[str, int] = {f"layer_{at}": 4 * 872 * (872 if at < 11 else 1) for at in range(12)}
# The layers whose gradients are summed together.
LAYERS = {
    "jax_fc_two_processes": [range(6, 12), range(6)],
    "tensorflow_fc_two_processes": [range(5, 12), range(5)],
}


def recorded(name: str, folder: Path, level: str = "operations") -> Graph:
    paths = []
    for packed in sorted((DATA / name).glob("*.gz")):
        paths.append(folder / packed.name.removesuffix(".gz"))
        paths[-1].write_bytes(gzip.decompress(packed.read_bytes()))
    shutil.copy(DATA / name / "names.json", folder)
    sizes = GRADIENTS if name == "tensorflow_fc_two_processes" else {}
    return graph(*paths, level=level, cores=2, gradient_bytes=sizes)


@pytest.mark.parametrize("name", NAMES)
def test_a_recorded_step_is_explained(name: str, tmp_path: Path) -> None:
    made = recorded(name, tmp_path)
    assert len(made.header.step_times_s) == 5
    assert made.header.coverage > 0.9


@pytest.mark.parametrize("level", ["operations", "segments"])
@pytest.mark.parametrize("name", NAMES)
def test_a_recorded_step_replays_to_its_own_time(name: str, level: str, tmp_path: Path) -> None:
    """A check of the dependencies and the gaps, not of predictions: those are only of other steps."""
    made = exclusive(recorded(name, tmp_path, level))
    program = program_of(made)
    errors = []
    for at, measured_s in enumerate(made.header.step_times_s):
        replayed = engine.run(program, [engine.of_step(made, at)] * engine.STEPS)
        errors.append(abs(replayed.step_time_ns / 1e9 / measured_s - 1))
    assert fmean(errors) < 0.02


@pytest.mark.parametrize("name", [name for name in NAMES if "_fc_" in name])
def test_phases_and_layers_of_recorded_stacks_are_known(name: str, tmp_path: Path) -> None:
    # The layers' sleeps are Python functions, which TensorFlow calls outside of the scopes of phases and layers.
    made = recorded(name, tmp_path)
    nodes = [one for one in made.nodes if one.kind is NodeKind.COMPUTE and "PyFunc" not in one.name]
    busy = sum(one.duration_ns for one in nodes)
    assert sum(one.duration_ns for one in nodes if one.phase) > 0.5 * busy
    layers = {f"layer_{at}" for at in range(10)}
    assert {one.layer for one in nodes if one.phase == "forward"} >= layers
    assert {one.gradient_of for one in nodes if one.gradient_of} >= layers


@pytest.mark.parametrize("name", ["jax_fc_two_processes", "tensorflow_fc_two_processes"])
def test_sums_over_a_network_have_their_gradients_and_block_the_step(name: str, tmp_path: Path) -> None:
    made = recorded(name, tmp_path)
    sums = [one.collective for one in made.nodes if one.collective and one.rank == 0]
    assert [(one.operation, one.ordinal, one.ranks) for one in sums] == [
        ("all_reduce", 0, (0, 1)),
        ("all_reduce", 1, (0, 1)),
    ]
    assert sum(one.bytes for one in sums) == sum(GRADIENTS.values())
    assert [set(one.tensor_layers) for one in sums] == [{f"layer_{at}" for at in own} for own in LAYERS[name]]
    found = replay(made, resamples=3)
    assert 0.5 * found.step_time_s < found.exposed_communication_s < found.step_time_s


def test_xla_says_what_a_recorded_sum_of_a_stack_consists_of(tmp_path: Path) -> None:
    made = recorded("jax_fc_two_devices", tmp_path)
    (found,) = {one.collective for one in made.nodes if one.collective}
    assert found.tensors == (4 * 512 * 512,) * 10 + (4 * 512,)
    assert found.tensor_layers == tuple(f"layer_{at}" for at in range(11))
    products = [one for one in made.nodes if one.rank == 0 and one.layer == "layer_5" and one.phase == "backward"]
    assert {one.flops for one in products} == {2 * 64 * 512 * 512}
