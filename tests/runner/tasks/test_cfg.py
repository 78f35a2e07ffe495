"""The `.cfg` files of the driver we follow: read as they are, and refused where they cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from records.task import Compute, Goal, MetricAsked
from runner.errors import MatrixError
from runner.tasks.cfg import Filled, goal_of, placeless, read_cfg, substituted

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


def test_the_example_of_the_driver_is_read_as_it_stands(tmp_path: Path) -> None:
    task = read_cfg(file_of(tmp_path, SEED), None, Filled())
    assert (task.name, task.gpus, task.shell, task.inherit) == ("resnet50_cifar10_imperative", 8, True, None)
    assert task.command == [COMMAND]
    number = r"(\d+\.\d+|\d+)"
    assert task.metrics == [
        MetricAsked("speed", f"Speed: {number} samples/sec", None, Compute.AVERAGE, Goal.HIGHER),
        MetricAsked("training_acc", f"training: accuracy={number}", None, Compute.LAST, Goal.HIGHER),
        MetricAsked("validation_acc", f"validation: accuracy={number}", None, Compute.LAST, Goal.HIGHER),
        MetricAsked("total_training_time", f"time cost: {number}", None, Compute.TOTAL, Goal.LOWER),
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


def test_a_value_is_filled_in_as_it_stands() -> None:
    assert substituted("run --kvstore device", Filled(kvstore=r"\1\g<0>")) == r"run --kvstore \1\g<0>"


def test_fields_that_a_command_does_not_have_are_known() -> None:
    filled = Filled(gpus=2, epochs=3, kvstore="nccl", dtype="float16")
    assert placeless("run --epochs 20 --kvstore dist --dtype=float32", filled) == ["--kvstore nccl", "--dtype float16"]
    assert placeless("run --epochs 20 --kvstore device --dtype float32", filled) == []
    assert placeless("run", Filled()) == []


def test_a_list_of_gpus_is_replaced_whole() -> None:
    assert substituted("run --gpus 1,0,2,3 -b 2", Filled(gpus=2)) == "run --gpus 2 -b 2"


def test_the_metrics_of_a_section_serve_another_command(tmp_path: Path) -> None:
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
def test_the_goal_follows_from_the_name(name: str, goal: Goal) -> None:
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
        "[t]: its lists must be of equal length, item for item; patterns has 2, metrics has 3, compute_method has 2",
    ),
    "an unknown way to compute": (
        section(compute_method="['last', 'totl']"),
        "[t] compute_method: must be one of average, last, first, total, min, max, median, p50, p90, p99, "
        "average_aggregate, got 'totl'; did you mean total?",
    ),
    "no list": (
        section(metrics="speed"),
        "[t] metrics: must be a list of texts as Python writes it, got 'speed'",
    ),
    "no list of texts": (
        section(metrics="[1, 2]"),
        "[t] metrics: must be a list of texts as Python writes it, got '[1, 2]'",
    ),
    "no group": (
        section(patterns="['a', 'b=(.)']"),
        "[t] patterns: must have one group, round the number, got none: 'a'",
    ),
    "no command": (
        section(command_to_execute=""),
        "[t] command_to_execute: is missing; give it there, or with --command-to-execute",
    ),
    "no number of GPUs": (section(num_gpus="many"), "[t] num_gpus: must be a whole number from 0 to 64, got 'many'"),
    "one name twice": (
        section(metrics="['a', 'a']"),
        "[t] metrics: must be different names of at most 64 letters, digits and _.-, got 'a'",
    ),
    "a lone percent sign": (
        section(command_to_execute="date +%s"),
        "'%' must be followed by '%' or '(', found: '%s'; write %% for a percent sign",
    ),
    "no section": ("patterns = []\n", "is no .cfg file: File contains no section headers."),
    "two of a name": ("[t]\n[t]\n", "is no .cfg file: While reading from"),
    "not UTF-8": (b"[t\xff]\n", "must be UTF-8, got byte 0xff at 2"),
    "more than a file of tasks": (SEED + "# so\n" * (1 << 18), "must have at most 1,048,576 bytes; take out the tasks"),
    "several tasks": ("[a]\n[b]\n", "holds 2 tasks; name one with --task-name: a, b"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_file_is_refused_in_these_words(tmp_path: Path, case: str) -> None:
    text, expected = WRONG[case]
    with pytest.raises(MatrixError) as caught:
        read_cfg(file_of(tmp_path, text), None, Filled())
    assert expected in caught.value.problems[0]


def test_a_missing_section_is_told_with_a_near_one(tmp_path: Path) -> None:
    with pytest.raises(MatrixError, match=r"there is no section \[resnet\]|did you mean"):
        read_cfg(file_of(tmp_path, SEED), "resnet50_cifar10_imperativ", Filled())


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(MatrixError, match="cannot be read"):
        read_cfg(tmp_path / "none.cfg", None, Filled())
