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


@pytest.mark.parametrize(
    ("content", "name", "problem"),
    [
        (
            SEED.encode(),
            "resnet50_cifar10_imperativ",
            "no section [resnet50_cifar10_imperativ]; did you mean resnet50_cifar10_imperative?",
        ),
        (b"[t\xff]\n", None, "must be UTF-8, got byte 0xff at 2"),
        (b"# so\n" * (1 << 18), None, "must have at most 1,048,576 bytes; remove the tasks that are not run"),
        (None, None, "cannot be read (No such file or directory); give a file with --config"),
    ],
)
def test_file_that_cannot_be_used_is_refused_by_its_name(
    tmp_path: Path, content: bytes | None, name: str | None, problem: str
) -> None:
    path = tmp_path / "none.cfg" if content is None else file_of(tmp_path, content)
    with pytest.raises(MatrixError) as caught:
        read_cfg(path, name, Filled())
    assert caught.value.problems == [f"{path}: {problem}"]
