"""`tasks` in a matrix file: strict, every problem with its line, and one cell for each point."""

from __future__ import annotations

from pathlib import Path

import pytest

from keras_matrix.records.task import Compute, Goal, MetricSpec
from keras_matrix.runner.errors import MatrixError
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


def problems_of(text: str) -> list[str]:
    with pytest.raises(MatrixError) as caught:
        parse(Path("m.yaml"), text.encode(), Catalog({}))
    return caught.value.problems


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


COMMAND = "    command: [a]\n"
WRONG = {
    "no task": ("  - command: [a]\n", "4: tasks[0]: task is missing; give it a name"),
    "no command": (
        "  - task: a\n",
        "4: tasks[0]: command is missing; write for example command: [python, train.py]",
    ),
    "a text without a shell": (
        "  - task: a\n    command: a b\n",
        "5: tasks[0].command: must be a list of words; a text needs shell: true, got 'a b'",
    ),
    "a number among the words": (
        "  - task: a\n    command: [a, 4]\n",
        '5: tasks[0].command[1]: must be text of at most 4096 characters, got 4; quote it: "4"',
    ),
    "an unknown key": (
        f"  - task: a\n{COMMAND}    metric: {{}}\n",
        "6: tasks[0].metric: unknown key, got 'metric'; did you mean metrics?",
    ),
    "an unknown key like no other": (
        f"  - task: a\n{COMMAND}    colour: red\n",
        "6: tasks[0].colour: unknown key, got 'colour'; must be one of task, command, params, backends, metrics, "
        "environment, inherit, wrap, shell, folder, primary, compare, image, gpus, workers, cpus, threads, repeats, "
        "precision_target, timeout_s, machine, gpu_model, memory_gib, across_nodes, parallel_devices, across_gpus",
    ),
    "a key of a metric in the task": (
        f"  - task: a\n{COMMAND}    pattern: 'speed (.)'\n",
        "6: tasks[0].pattern: unknown key, got 'pattern'; it belongs to a metric: metrics: {NAME: {pattern: ...}}",
    ),
    "a setting of a workload in the task": (
        f"  - task: a\n{COMMAND}    batch_size: 8\n",
        "6: tasks[0].batch_size: unknown key, got 'batch_size'; write it under params, and {batch_size} where the "
        "command takes it",
    ),
    "a misspelt key of a metric": (
        f"  - task: a\n{COMMAND}    metrics: {{x: {{patern: (.)}}}}\n",
        "6: tasks[0].metrics.x.patern: unknown key, got 'patern'; did you mean pattern?",
    ),
    "a key of the task in a metric": (
        f"  - task: a\n{COMMAND}    metrics: {{x: {{pattern: (.), timeout_s: 5}}}}\n",
        "6: tasks[0].metrics.x.timeout_s: unknown key, got 'timeout_s'; it belongs to the task, one level up",
    ),
    "primary in a metric": (
        f"  - task: a\n{COMMAND}    metrics: {{x: {{pattern: (.), primary: true}}}}\n",
        "6: tasks[0].metrics.x.primary: unknown key, got 'primary'; write primary: NAME in the task",
    ),
    "an unknown key of a metric like no other": (
        f"  - task: a\n{COMMAND}    metrics: {{x: {{regex: (.)}}}}\n",
        "6: tasks[0].metrics.x.regex: unknown key, got 'regex'; must be one of pattern, unit, compute, goal, discard",
    ),
    "an unknown way to compute": (
        f"  - task: a\n{COMMAND}    metrics: {{x: {{pattern: (.), compute: avarage}}}}\n",
        "6: tasks[0].metrics.x.compute: must be average, last, first, total, min, max, median, p50, p90, p99 or "
        "average_aggregate, got 'avarage'; did you mean average?",
    ),
    "a pattern without a group": (
        f"  - task: a\n{COMMAND}    metrics: {{x: 'a+'}}\n",
        "6: tasks[0].metrics.x.pattern: must have one group, around the number, got none: 'a+'",
    ),
    "a pattern with two groups": (
        f"  - task: a\n{COMMAND}    metrics: {{x: '(a)(b)'}}\n",
        "6: tasks[0].metrics.x.pattern: must have one group, got 2; write (?: ) for groups without a value: '(a)(b)'",
    ),
    "a pattern that is none": (
        f"  - task: a\n{COMMAND}    metrics: {{x: '('}}\n",
        "6: tasks[0].metrics.x.pattern: must be a regular expression of Python's re, got '(': missing ), unterminated "
        "subpattern at position 0",
    ),
    "a primary that is no metric": (
        f"  - task: a\n{COMMAND}    metrics: {{speed: (.)}}\n    primary: sped\n",
        "7: tasks[0].primary: must be one of its metrics (speed, uptime_in_seconds), got 'sped'; did you mean speed?",
    ),
    "a place that nothing fills": (
        "  - task: a\n    command: [a, '{batchsize}']\n"
        "    params: {batch_size: 1}\n    environment: {A: '{batch_size}'}\n",
        "5: tasks[0].command: {batchsize} must be a parameter or one of gpus, outputs, python, task, workers; did you "
        "mean batch_size?; in a shell write ${batchsize} for its own variables",
    ),
    "a place in a wrapper that nothing fills": (
        f"  - task: a\n{COMMAND}    wrap: [nice, '{{n}}']\n",
        "6: tasks[0].wrap: {n} must be a parameter or one of gpus, outputs, python, task, workers; in a shell write "
        "${n} for its own variables",
    ),
    "a name to inherit that is none": (
        f"  - task: a\n{COMMAND}    inherit: [A, B-C]\n",
        "6: tasks[0].inherit[1]: must be all or names of variables, got 'B-C'",
    ),
    "an axis that fills no place": (
        f"  - task: a\n{COMMAND}    params: {{n: [1, 2]}}\n",
        "6: tasks[0].params.n: must be used in the command or the environment, as {n}",
    ),
    "an axis that is none": (
        f"  - task: a\n{COMMAND}    compare: n\n",
        "6: tasks[0].compare: must be one of its axes (no axis), got 'n'",
    ),
    "a parameter of our name": (
        f"  - task: a\n{COMMAND}    params: {{outputs: 1}}\n",
        "6: tasks[0].params.outputs: must be a lower-case name that is not reserved, got 'outputs'",
    ),
    "a variable that is none": (
        f"  - task: a\n{COMMAND}    environment: {{A-B: c}}\n",
        "6: tasks[0].environment.A-B: must be the name of a variable, got 'A-B'",
    ),
    "no mapping": ("  - a\n", "4: tasks[0]: must be a mapping with a task and its command, got 'a'"),
    "two of a name": (
        f"  - task: a\n{COMMAND}  - task: a\n{COMMAND}",
        "3: tasks: must not name a task twice, got task a",
    ),
    "the metric that every command has": (
        f"  - task: a\n{COMMAND}    metrics: {{uptime_in_seconds: (.)}}\n",
        "6: tasks[0].metrics.uptime_in_seconds: must be a name of at most 64 letters, digits and _.-, and not "
        "uptime_in_seconds, got 'uptime_in_seconds'",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_task_is_refused_with_a_message(case: str) -> None:
    text, expected = WRONG[case]
    assert [f"m.yaml:{expected}"] == problems_of("version: 1\ndefaults: {repeats: 1}\ntasks:\n" + text)


def test_cells_require_backends_and_a_file_requires_entries() -> None:
    assert problems_of("version: 1\n") == [
        "m.yaml:1: backends is missing; write for example backends: [tensorflow, jax, torch]",
        "m.yaml:1: cells is missing; write at least one entry, for example - workload: mnist_mlp",
    ]
