"""`tasks` in a matrix file: strict, every problem with its line, and one cell for each point."""

from __future__ import annotations

from pathlib import Path

from keras_matrix.records.task import Compute, Goal, MetricSpec
from keras_matrix.runner.matrix.catalog import Catalog
from keras_matrix.runner.matrix.overrides import Overrides
from keras_matrix.runner.matrix.reader import Cell, expand, parse
from keras_matrix.runner.plan.plan import comparisons

TASK = """\
version: 1
defaults: {repeats: 3}
tasks:
  - task: train
    command: ["{python}", train.py, --batch, "{batch_size}"]
"""


def cells_of(text: str, overrides: Overrides | None = None) -> list[Cell]:
    return expand(parse(Path("m.yaml"), text.encode(), Catalog({})), overrides)


def test_list_is_an_axis_and_its_values_are_filled_into_the_command() -> None:
    found = cells_of(TASK + "    params: {batch_size: [8, 32]}\n")
    assert [cell.task.command for cell in found if cell.task] == [
        ["{python}", "train.py", "--batch", "8"],
        ["{python}", "train.py", "--batch", "32"],
    ]
    assert [cell.settings.backend for cell in found] == ["batch_size=8", "batch_size=32"]
    assert len({cell.cell_id for cell in found}) == 2
    assert [cell.repeats for cell in found] == [3, 3]
    assert len(comparisons(found)) == 1


def test_backends_are_compared_and_other_axes_make_rows() -> None:
    found = cells_of(TASK + "    params: {batch_size: [8, 32]}\n    backends: [torch, jax]\n")
    assert [cell.settings.backend for cell in found] == ["torch", "jax", "torch", "jax"]
    assert [cell.settings.params["batch_size"] for cell in found] == [8, 8, 32, 32]
    assert len(comparisons(found)) == 2


def test_axis_other_than_the_backend_can_be_compared() -> None:
    text = TASK + "    params: {batch_size: [8, 32]}\n    backends: [torch, jax]\n    compare: batch_size\n"
    found = cells_of(text)
    assert {(cell.settings.backend, cell.settings.params["backend"]) for cell in found} == {
        ("batch_size=8", "torch"),
        ("batch_size=8", "jax"),
        ("batch_size=32", "torch"),
        ("batch_size=32", "jax"),
    }


def test_task_definition_is_part_of_the_identity_and_limits_are_not() -> None:
    alone = TASK.replace(', --batch, "{batch_size}"', "")
    first = cells_of(alone)[0].cell_id
    assert cells_of(alone + "    timeout_s: 5\n    repeats: 9\n")[0].cell_id == first
    for more in ("environment: {A: b}", "metrics: {x: '(.)'}", "wrap: [nice]", "gpus: 1", "folder: x", "shell: false"):
        same = more == "shell: false"
        assert (cells_of(alone + f"    {more}\n")[0].cell_id == first) == same


def test_metrics_are_read_with_their_defaults() -> None:
    text = TASK.replace(', --batch, "{batch_size}"', "") + (
        "    metrics:\n"
        "      speed: {pattern: 'Speed: (\\S+)', unit: samples/s, compute: p50, goal: higher, discard: 2}\n"
        "      loss: 'loss: (\\S+)'\n"
        "      reported: {unit: ms}\n"
    )
    task = cells_of(text)[0].task
    assert task is not None
    assert task.primary == "speed"
    assert task.metrics == [
        MetricSpec("speed", r"Speed: (\S+)", "samples/s", Compute.P50, Goal.HIGHER, 2),
        MetricSpec("loss", r"loss: (\S+)", None, Compute.AVERAGE, Goal.LOWER, 0),
        MetricSpec("reported", None, "ms", Compute.AVERAGE, Goal.LOWER, 0),
    ]


def test_shell_command_is_one_text_with_its_own_variables() -> None:
    text = TASK.replace('["{python}", train.py, --batch, "{batch_size}"]', "'echo ${HOME} {n} | cat'")
    task = cells_of(text + "    shell: true\n    params: {n: 3}\n")[0].task
    assert task is not None
    assert (task.command, task.shell) == (["echo ${HOME} 3 | cat"], True)


def test_places_are_filled_in_the_command_the_wrapper_and_the_environment() -> None:
    text = (
        "version: 1\ntasks:\n"
        "  - task: train\n"
        "    command: ['{task}', '{gpus} {workers}', '{python}', '${n}']\n"
        "    wrap: [nice, -n, '{n}']\n"
        "    environment: {RATE: 'at {rate}', BACKEND: '{backend}'}\n"
        "    params: {n: 7, rate: 0.5}\n"
        "    backends: [jax]\n"
        "    gpus: 2\n"
        "    workers: 3\n"
    )
    task = cells_of(text)[0].task
    assert task is not None
    assert task.command == ["train", "2 3", "{python}", "${n}"]
    assert task.wrap == ["nice", "-n", "7"]
    assert task.environment == {"RATE": "at 0.5", "BACKEND": "jax"}
    assert (task.primary, task.workers) == ("uptime_in_seconds", 3)


def test_task_accepts_threads_and_limits_of_cells() -> None:
    (cell,) = cells_of(TASK + "    params: {batch_size: 8}\n    threads: 1\n    repeats: 7\n    timeout_s: 9\n")
    assert (cell.settings.threads, cell.repeats, cell.timeout_s) == (1, 7, 9)


def test_flags_filter_and_set_tasks() -> None:
    text = TASK + "    params: {batch_size: [8, 32], rate: [0.1, 0.2]}\n    environment: {RATE: '{rate}'}\n"
    kept = cells_of(text, Overrides(backends=("batch_size=32",), filters=("rate=0.2",), repeats=1))
    assert [(c.settings.backend, c.settings.params["rate"], c.repeats) for c in kept] == [("batch_size=32", 0.2, 1)]
    assert {cell.settings.params["rate"] for cell in cells_of(text, Overrides(assignments={"rate": 0.5}))} == {0.5}
