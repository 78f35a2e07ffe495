"""The flags of `runner fc`: names and spelling of the original, and the names in a matrix file."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

from keras_matrix.records.fc.spec import MODES, PARTITIONS
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.service.fc import FULL_TRACE, FcFlags


def truth(text: str) -> bool:
    """Return the value of a flag that is `true` or `false`, as in a matrix file."""
    if text not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"must be true or false, got {text}")
    return text == "true"


# The flags that are parameters or settings of the workload: name in a matrix file, type, metavar and help. Flags that
# are left out have the workload's defaults.
TASK: dict[str, tuple[str, Callable[[str], object], str, str]] = {
    "mode": ("mode", str, "MODE", f"one of {', '.join(MODES)}"),
    "num_workers": ("workers", int, "N", "workers that share the work; several are compared; default: 1"),
    "level": ("level", int, "N", "square layers; one with a single column follows; default: 10"),
    "weight_size": ("weight_size", int, "N", "rows and columns of a layer; default: 1024"),
    "batch_size": ("batch_size", int, "N", "of all workers together; default: 128"),
    "dtype": ("precision", str, "NAME", "float32, float64 or bfloat16; default: float32"),
    "phy_blocks": ("phy_blocks", int, "N", "fc_phy: models per worker; default: 1"),
    "shared_ratio": ("shared_ratio", float, "R", "fc_phy: share averaged; default: 1/1024"),
    "reduce": ("reduce", str, "HOW", "sum or mean of the workers' gradients; default: sum"),
    "overlap": ("overlap", str, "ON|OFF", "fc_data, fc_data_manual: sum while other gradients are computed"),
    "partition": ("partition", str, "WHO", f"inserts the collectives: {', '.join(PARTITIONS)}"),
    "model_workers": ("model_workers", int, "N", "fc_hybrid: workers that divide a layer"),
    "micro_batches": ("micro_batches", int, "N", "fc_pipeline: parts of the batch; default: 4"),
    "network": ("network", str, "RATE", "local, or the rate of ci/netns's links; default: local"),
    "bucket_cap_mb": ("bucket_cap_mb", float, "MIB", "fc_data: MiB of gradients summed together"),
    "buckets": ("buckets", str, "COUNTS", "fc_data: gradients summed together, such as 3,5,2, from the last layer"),
    "bytes_per_pack": ("bytes_per_pack", int, "N", "fc_data, TensorFlow: bytes summed together"),
    "forward_sleep_ms": ("forward_sleep_ms", float, "MS", "fc_data: a sleep of every layer in the forward pass"),
    "backward_sleep_ms": ("backward_sleep_ms", float, "MS", "fc_data: a sleep of every layer in the backward pass"),
    "gradient_accumulation": ("gradient_accumulation", int, "N", "fc_data: parts of the batch; default: 1"),
    "recompute": ("recompute", truth, "BOOL", "fc_data: true: compute layers' inputs again in the backward pass"),
    "amp": ("amp", str, "LAYERS", "fc_data: layers that compute in bfloat16, such as 0-3,6"),
    "fuse": ("fuse", str, "BLOCKS", "fc_data: blocks of layers compiled as one program each, such as 0-3,4-7"),
    "threads": ("threads", int, "N", "CPU threads of all workers together; default: all"),
    "device": ("device", str, "NAME", "cpu or gpu; default: cpu"),
    "seed": ("seed", int, "N", "seed of weights and batch; default: 0"),
}
# Flags of the original that have another name here.
RENAMED = {"model": "mode"}
# Flags of the original that have no meaning here, with the reason.
_HERE = "workers are started by this command, on this machine"
MEANINGLESS = {
    "num-gpus": "--num-workers says how many workers there are, and --device on what",
    "worker-index": _HERE,
    "node-name": _HERE,
    "distributed-mode": _HERE,
    "worker-grpc-url": _HERE,
    "img-h": "the original did not use it either",
    "img-w": "the original did not use it either",
    "img-d": "the original did not use it either",
    "no-assign": "the original did not use it either",
}


def add_task_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the original and the newer ones."""
    task = parser.add_argument_group("which task (--num_workers=2, as in the original, is --num-workers 2)")
    for name, (_, kind, metavar, meaning) in TASK.items():
        nargs = "+" if name == "num_workers" else None
        task.add_argument(f"--{name.replace('_', '-')}", type=kind, nargs=nargs, metavar=metavar, help=meaning)
    task.add_argument("--num-batches", type=int, default=100, metavar="N", help="batches timed; default: 100")
    task.add_argument("--backend", action="append", default=[], metavar="NAME", help="only this; may be repeated")
    task.add_argument("--repeats", type=int, default=1, metavar="N", help="processes; default: 1")
    _add_original_flags(parser)


def _add_original_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that only the original needs: one has an optional number, two must agree with the others."""
    parser.add_argument(
        "--full-trace",
        type=int,
        nargs="?",
        const=1,
        default=0,
        metavar="1",
        help=f"also record a trace after the measurement, and write it to {FULL_TRACE} here (docs/traces.md)",
    )
    agree = parser.add_argument_group("flags of the original that must agree with the others, or be left out")
    agree.add_argument(
        "--gpu-aggr",
        type=int,
        metavar="0|1",
        help="1 where fc_data, fc_data_slice or fc_data_ff keeps weights on several GPUs, else 0",
    )
    agree.add_argument("--num-classes", type=int, metavar="1", help="columns of the last layer: 1")


def spelled(words: Sequence[str]) -> list[str]:
    """Return a command line in the spelling of this command: with hyphens and with its names.

    Raises `UsageError` for flags of the original that have no meaning here, all in one message.
    """
    spelled_words = [_spelled(word) if word.startswith("--") else word for word in words]
    word_by_flag = {word.partition("=")[0].removeprefix("--"): words[index] for index, word in enumerate(spelled_words)}
    if problems := [
        (word_by_flag[name].partition("=")[0], why) for name, why in MEANINGLESS.items() if name in word_by_flag
    ]:
        raise UsageError("\n".join(f"{flag}: has no meaning here: {why}; leave it out" for flag, why in problems))
    return spelled_words


def _spelled(word: str) -> str:
    name, equals, value = word.removeprefix("--").partition("=")
    name = name.replace("_", "-")
    return f"--{RENAMED.get(name, name)}{equals}{value}"


def fc_flags(args: argparse.Namespace) -> FcFlags:
    """Return the values of the flags of `add_task_flags`."""
    task = {key: value for flag, (key, *_) in TASK.items() if (value := getattr(args, flag)) is not None}
    agree = (args.full_trace, args.gpu_aggr, args.num_classes)
    return FcFlags(task, args.backend, args.num_batches, args.repeats, *agree)
