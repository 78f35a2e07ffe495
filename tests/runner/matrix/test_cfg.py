"""The `.cfg` files of the driver we follow: read as they are, and refused where they cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from keras_matrix.records.task import Compute, Goal, MetricSpec
from keras_matrix.runner.errors import MatrixError
from keras_matrix.runner.matrix.cfg import (
    Filled,
    flags_without_place,
    goal_of,
    lines_of,
    read_cfg,
    substituted,
    unused_keys,
)

# The example of that driver's own document.
SEED = r"""
 [resnet50_cifar10_imperative]
 patterns = ['Speed: (\d+\.\d+|\d+) samples/sec', 'training: accuracy=(\d+\.\d+|\d+)', 'validation: accuracy=(\d+\.\d+|\d+)', 'time cost: (\d+\.\d+|\d+)']
 metrics = ['speed', 'training_acc', 'validation_acc', 'total_training_time']
 compute_method = ['average', 'last', 'last', 'total']
 command_to_execute = python image_classification/image_classification.py --model resnet50_v1 --dataset cifar10 --gpus 8 --epochs 20 --log-interval 50
 num_gpus = 8
"""  # noqa: E501 - as it stands there
COMMAND = (
    "python image_classification/image_classification.py --model resnet50_v1 --dataset cifar10 --gpus 8 --epochs 20 "
    "--log-interval 50"
)


def file_of(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "task_config.cfg"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_example_of_the_driver_is_read_unchanged(tmp_path: Path) -> None:
    task = read_cfg(file_of(tmp_path, SEED), None, Filled())
    assert (task.name, task.gpus, task.shell, task.inherit) == ("resnet50_cifar10_imperative", 8, True, None)
    assert task.command == [COMMAND]
    number = r"(\d+\.\d+|\d+)"
    assert task.metrics == [
        MetricSpec("speed", f"Speed: {number} samples/sec", None, Compute.AVERAGE, Goal.HIGHER),
        MetricSpec("training_acc", f"training: accuracy={number}", None, Compute.LAST, Goal.HIGHER),
        MetricSpec("validation_acc", f"validation: accuracy={number}", None, Compute.LAST, Goal.HIGHER),
        MetricSpec("total_training_time", f"time cost: {number}", None, Compute.TOTAL, Goal.LOWER),
    ]


@pytest.mark.parametrize(
    ("filled", "expected"),
    [
        (Filled(), "run --gpus 8 --epochs 20 --kvstore device --dtype float32"),
        (Filled(gpus=16), "run --gpus 16 --epochs 20 --kvstore device --dtype float32"),
        (Filled(gpus=0), "run  --epochs 20 --kvstore device --dtype float32"),
        (
            Filled(epochs=3, kvstore="nccl", dtype="float16"),
            "run --gpus 8 --epochs 3 --kvstore nccl --dtype float16",
        ),
    ],
)
def test_fields_of_the_template_are_filled_in(filled: Filled, expected: str) -> None:
    assert substituted("run --gpus 8 --epochs 20 --kvstore device --dtype float32", filled) == expected


def test_value_is_filled_in_literally() -> None:
    assert substituted("run --kvstore device", Filled(kvstore=r"\1\g<0>")) == r"run --kvstore \1\g<0>"


def test_flags_without_a_place_in_the_command_are_found() -> None:
    filled = Filled(gpus=2, epochs=3, kvstore="nccl", dtype="float16")
    assert flags_without_place("run --epochs 20 --kvstore dist --dtype=float32", filled) == [
        "--kvstore nccl",
        "--dtype float16",
    ]
    assert flags_without_place("run --epochs 20 --kvstore device --dtype float32", filled) == []
    assert flags_without_place("run", Filled()) == []


def test_full_list_of_gpus_is_replaced() -> None:
    assert substituted("run --gpus 1,0,2,3 -b 2", Filled(gpus=2)) == "run --gpus 2 -b 2"


def test_metrics_of_a_section_serve_another_command(tmp_path: Path) -> None:
    text = "[policy]\npatterns = ['x=(.)']\nmetrics = ['x']\ncompute_method = ['last']\n"
    task = read_cfg(file_of(tmp_path, text), "mine", Filled(policy="policy", command="echo x=1"))
    assert (task.name, task.command, [m.name for m in task.metrics]) == ("mine", ["echo x=1"], ["x"])


@pytest.mark.parametrize(
    ("name", "goal"),
    [
        ("speed", Goal.HIGHER),
        ("Images per sec", Goal.HIGHER),
        ("Train-top_k_accuracy_5", Goal.HIGHER),
        ("F1", Goal.HIGHER),
        ("total_training_time", Goal.LOWER),
        ("validation_loss", Goal.LOWER),
        ("test_perplexity", Goal.LOWER),
    ],
)
def test_goal_follows_from_the_name(name: str, goal: Goal) -> None:
    assert goal_of(name) == goal


def section(**values: str) -> str:
    usual = {
        "patterns": "['a=(.)', 'b=(.)']",
        "metrics": "['a', 'b']",
        "compute_method": "['last', 'last']",
        "command_to_execute": "true",
    }
    return "[t]\n" + "".join(f"{key} = {value}\n" for key, value in (usual | values).items() if value)


WRONG = {
    "unequal lists": (
        section(metrics="['a', 'b', 'c']"),
        "task_config.cfg:1: [t]: its lists must have the same length; patterns has 2, metrics has 3, "
        "compute_method has 2",
    ),
    "an unknown way to compute": (
        section(compute_method="['last', 'totl']"),
        "[t] compute_method: must be one of average, last, first, total, min, max, median, p50, p90, p99, "
        "average_aggregate, got 'totl'; did you mean total?",
    ),
    "no list": (
        section(metrics="speed"),
        "task_config.cfg:3: [t] metrics: must be a Python list of texts, got 'speed'",
    ),
    "no list of texts": (
        section(metrics="[1, 2]"),
        "[t] metrics: must be a Python list of texts, got '[1, 2]'",
    ),
    "no group": (
        section(patterns="['a', 'b=(.)']"),
        "[t] patterns: must have one group, around the number, got none: 'a'",
    ),
    "no command": (
        section(command_to_execute=""),
        "task_config.cfg:1: [t] command_to_execute: is missing; give it there, or with --command-to-execute",
    ),
    "no number of GPUs": (section(num_gpus="many"), "[t] num_gpus: must be a whole number from 0 to 64, got 'many'"),
    "one name twice": (
        section(metrics="['a', 'a']"),
        "[t] metrics: must be different names of at most 64 letters, digits and _.-, got 'a'",
    ),
    "a reference to a missing key": (
        section(command_to_execute="run %(bin)s"),
        "task_config.cfg:5: [t] command_to_execute: refers to %(bin)s, which the section does not have; write %%(bin)s "
        "for the text itself",
    ),
    "a reference without its end": (
        section(command_to_execute="date +%(s"),
        "task_config.cfg:5: [t] command_to_execute: has %( without )s; write %%( for the text itself",
    ),
    "a reference to itself": (
        section(command_to_execute="%(a)s", a="%(command_to_execute)s"),
        "task_config.cfg:5: [t] command_to_execute: refers to itself, or through more than 10 other keys: "
        "command_to_execute -> a -> command_to_execute",
    ),
    "no section": (
        "\npatterns = []\n",
        "task_config.cfg:2: must begin with the [name] of a task, got 'patterns = []'",
    ),
    "two sections of one name": (
        "[t]\n[t]\n",
        "task_config.cfg:2: [t]: must not appear twice; rename or remove one",
    ),
    "one key twice": ("[t]\na = 1\na = 2\n", "task_config.cfg:3: [t] a: must not appear twice; remove one"),
    "a line without a value": (
        "[s]\n[t]\npatterns\n",
        "task_config.cfg:3: [t]: must be key = value, got 'patterns\\n'",
    ),
    "a misspelt key": (
        section(patterns="", pattern="[]"),
        "task_config.cfg:5: [t] pattern: unknown key; did you mean patterns?",
    ),
    "a misspelt optional key": (
        section(num_gpu="8"),
        "task_config.cfg:6: [t] num_gpu: unknown key; did you mean num_gpus?",
    ),
    "a shortened key": (
        section(command_to_execute="", command="true"),
        "task_config.cfg:5: [t] command: unknown key; did you mean command_to_execute?",
    ),
    "not UTF-8": (b"[t\xff]\n", "must be UTF-8, got byte 0xff at 2"),
    "more than a file of tasks": (SEED + "# so\n" * (1 << 18), "must have at most 1,048,576 bytes; remove the tasks"),
    "several tasks": ("[a]\n[b]\n", "has 2 tasks; choose one with --task-name: a, b"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_file_is_refused_with_a_message(tmp_path: Path, case: str) -> None:
    text, expected = WRONG[case]
    with pytest.raises(MatrixError) as caught:
        read_cfg(file_of(tmp_path, text), None, Filled())
    assert expected in caught.value.problems[0]


# The form of the driver's own template: many sections, bare percent signs in some, sections that only hold metrics.
TEMPLATE = "".join(
    f"[train_{number}]\npatterns = ['speed: (\\d+)', 'errors: (\\d+)\\%']\nmetrics = ['speed', 'errors']\n"
    f"compute_method = ['average', 'last']\ncommand_to_execute = date +%s; run --gpus 8 --batch {number}\n"
    "num_gpus = 8\n\n"
    for number in range(40)
) + (
    "[metrics_only]\npatterns = ['speed: (\\d+)']\nmetrics = ['speed']\ncompute_method = ['average']\n\n"
    "[plain]\npatterns = ['speed: (\\d+)']\nmetrics = ['speed']\ncompute_method = ['average']\n"
    "command_to_execute = run --gpus 8\nnum_gpus = 8\n\n"
    "[broken]\npatterns = ['speed: (\\d+)']\nmetrics = ['speed']\ncompute_method = ['average']\n"
    "command_to_execute = run %(missing)s %(\n"
)


def test_other_sections_do_not_affect_the_chosen_one(tmp_path: Path) -> None:
    task = read_cfg(file_of(tmp_path, TEMPLATE), "plain", Filled())
    assert (task.command, [metric.name for metric in task.metrics]) == (["run --gpus 8"], ["speed"])


def test_bare_percent_sign_in_the_chosen_section_is_literal(tmp_path: Path) -> None:
    task = read_cfg(file_of(tmp_path, TEMPLATE), "train_7", Filled())
    assert task.command == ["date +%s; run --gpus 8 --batch 7"]
    assert [metric.pattern for metric in task.metrics] == [r"speed: (\d+)", r"errors: (\d+)\%"]


def test_section_without_a_command_gives_its_metrics_to_another_command(tmp_path: Path) -> None:
    task = read_cfg(file_of(tmp_path, TEMPLATE), "mine", Filled(policy="metrics_only", command="echo speed: 3"))
    assert (task.name, task.command, [m.name for m in task.metrics]) == ("mine", ["echo speed: 3"], ["speed"])


def test_section_without_a_command_is_refused_at_its_own_line(tmp_path: Path) -> None:
    line = TEMPLATE[: TEMPLATE.index("[metrics_only]")].count("\n") + 1
    with pytest.raises(MatrixError) as caught:
        read_cfg(file_of(tmp_path, TEMPLATE), "metrics_only", Filled())
    expected = f"task_config.cfg:{line}: [metrics_only] command_to_execute: is missing; give it there, or with "
    assert [expected in problem for problem in caught.value.problems] == [True]


def test_percent_signs_are_read_as_documented(tmp_path: Path) -> None:
    text = "[DEFAULT]\nroot = /data/%%d\n[t]\npatterns = []\nmetrics = []\ncompute_method = []\n"
    command = "date +%s 100%% %%s %(ROOT)s %%(root)s 5%"
    task = read_cfg(file_of(tmp_path, f"{text}command_to_execute = {command}\n"), None, Filled())
    assert task.command == ["date +%s 100% %s /data/%d %(root)s 5%"]


def test_byte_order_mark_is_accepted(tmp_path: Path) -> None:
    task = read_cfg(file_of(tmp_path, b"\xef\xbb\xbf" + section().encode()), None, Filled())
    assert task.name == "t"


def test_lines_are_counted_as_the_file_is_read() -> None:
    text = " [a]\n # c = 1\n Patterns: [\n   'metrics = (.)',\n   [b]]\n\n metrics=x\n[b]\n  metrics = y\n"
    expected = {("a", ""): 1, ("a", "patterns"): 3, ("a", "metrics"): 7, ("b", ""): 8, ("b", "metrics"): 9}
    assert expected == lines_of(text)


def test_keys_without_effect_are_reported_with_what_to_do(tmp_path: Path) -> None:
    path = file_of(tmp_path, section(timeout_s="5", metric="x", own="%(used)s", used="1"))
    known = "a section has patterns, metrics, compute_method, command_to_execute, num_gpus"
    assert unused_keys(path, None, Filled(gpus=0)) == [
        f"{path}:6: [t] timeout_s: unknown key without effect; to set timeout_s, write the task under tasks: in a "
        "matrix file (docs/tasks.md)",
        f"{path}:7: [t] metric: unknown key without effect; did you mean metrics?; {known}",
        f"{path}:8: [t] own: unknown key without effect; {known}",
    ]


def test_keys_that_other_values_refer_to_are_not_reported(tmp_path: Path) -> None:
    path = file_of(tmp_path, "[DEFAULT]\nother = 1\n" + section(command_to_execute="run %(Script)s", script="a.py"))
    assert unused_keys(path, None, Filled()) == []


def test_missing_section_is_reported_with_a_similar_name(tmp_path: Path) -> None:
    with pytest.raises(MatrixError, match=r"no section \[resnet\]|did you mean"):
        read_cfg(file_of(tmp_path, SEED), "resnet50_cifar10_imperativ", Filled())


def test_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(MatrixError, match="cannot be read"):
        read_cfg(tmp_path / "none.cfg", None, Filled())
