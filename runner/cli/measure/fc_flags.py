"""The flags of `runner fc`: the original's names and spelling, and what they are called in a matrix file."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from keras_matrix.records.fc.spec import MODES, PARTITIONS
from keras_matrix.runner.errors import UsageError

FULL_TRACE = "full_trace.ctf"
# The flags that are parameters or settings of the workload, and what they are called there.
TASK = {
    "mode": "mode",
    "num_workers": "workers",
    "level": "level",
    "weight_size": "weight_size",
    "batch_size": "batch_size",
    "dtype": "precision",
    "phy_blocks": "phy_blocks",
    "shared_ratio": "shared_ratio",
    "reduce": "reduce",
    "overlap": "overlap",
    "partition": "partition",
    "model_workers": "model_workers",
    "micro_batches": "micro_batches",
    "network": "network",
    "threads": "threads",
    "device": "device",
    "seed": "seed",
}
# What else a message may name, and the flag that it means.
FLAGS = {key: flag.replace("_", "-") for flag, key in TASK.items()} | {"backends": "backend", "repeats": "repeats"}
# The original's flags whose names differ here.
RENAMED = {"model": "mode"}
# The original's flags that have no meaning here, and why.
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
    """Add the flags of the original, and of what came later; those left out are at the workload's defaults."""
    task = parser.add_argument_group("which task (--num_workers=2, as in the original, is --num-workers 2)")
    task.add_argument("--mode", metavar="MODE", help=f"one of {', '.join(MODES)}")
    task.add_argument(
        "--num-workers",
        type=int,
        nargs="+",
        metavar="N",
        help="workers the work is divided among; several are compared; default: 1",
    )
    task.add_argument("--level", type=int, metavar="N", help="square layers; one of one column follows; default: 10")
    task.add_argument("--weight-size", type=int, metavar="N", help="rows and columns of a layer; default: 1024")
    task.add_argument("--batch-size", type=int, metavar="N", help="of all workers together; default: 128")
    task.add_argument("--num-batches", type=int, default=100, metavar="N", help="batches timed; default: 100")
    task.add_argument("--dtype", metavar="NAME", help="float32, float64 or bfloat16; default: float32")
    task.add_argument("--phy-blocks", type=int, metavar="N", help="fc_phy: models each worker holds; default: 1")
    task.add_argument("--shared-ratio", type=float, metavar="R", help="fc_phy: share averaged; default: 1/1024")
    task.add_argument("--reduce", metavar="HOW", help="sum or mean of the workers' gradients; default: sum")
    task.add_argument("--overlap", metavar="ON|OFF", help="fc_data, fc_data_manual: sum while others are made")
    task.add_argument("--partition", metavar="WHO", help=f"puts the collectives in: {', '.join(PARTITIONS)}")
    task.add_argument("--model-workers", type=int, metavar="N", help="fc_hybrid: workers that divide a layer")
    task.add_argument("--micro-batches", type=int, metavar="N", help="fc_pipeline: parts of the batch; default: 4")
    task.add_argument("--network", metavar="RATE", help="local, or the rate of ci/netns's links; default: local")
    task.add_argument("--threads", type=int, metavar="N", help="CPU threads of all workers together; default: all")
    task.add_argument("--device", metavar="NAME", help="cpu or gpu; default: cpu")
    task.add_argument("--seed", type=int, metavar="N", help="of weights and batch; default: 0")
    task.add_argument("--backend", action="append", default=[], metavar="NAME", help="only this; may be repeated")
    task.add_argument("--repeats", type=int, default=1, metavar="N", help="processes; default: 1")
    _add_original_flags(parser)


def _add_original_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that only the original needs: one takes a number or none, two must agree with how it is here."""
    parser.add_argument(
        "--full-trace",
        type=int,
        nargs="?",
        const=1,
        default=0,
        metavar="1",
        help=f"record a trace after what is measured, too, and write it to {FULL_TRACE} here (docs/traces.md)",
    )
    agree = parser.add_argument_group("flags of the original that must agree with the others, or be left out")
    agree.add_argument(
        "--gpu-aggr",
        type=int,
        metavar="0|1",
        help="1 where fc_data, fc_data_slice or fc_data_ff keeps weights on several GPUs, else 0",
    )
    agree.add_argument("--num-classes", type=int, metavar="1", help="columns of the last layer: 1")


def spelled(given: Sequence[str]) -> list[str]:
    """Return a command line in this command's spelling: hyphens, and the names that differ.

    Raises `UsageError` for the original's flags that have no meaning here, all in one message.
    """
    found = [_spelled(word) if word.startswith("--") else word for word in given]
    named = {word.partition("=")[0].removeprefix("--"): given[at] for at, word in enumerate(found)}
    if problems := [(named[name].partition("=")[0], why) for name, why in MEANINGLESS.items() if name in named]:
        raise UsageError("\n".join(f"{flag}: has no meaning here: {why}; leave it out" for flag, why in problems))
    return found


def _spelled(word: str) -> str:
    name, equals, value = word.removeprefix("--").partition("=")
    name = name.replace("_", "-")
    return f"--{RENAMED.get(name, name)}{equals}{value}"


@dataclass(frozen=True, slots=True)
class FcFlags:
    """What the flags ask for; `task` has what was given of the workload, by the names of a matrix file."""

    task: dict[str, Any]
    backends: list[str]
    num_batches: int
    repeats: int
    full_trace: int
    gpu_aggr: int | None
    num_classes: int | None


def fc_flags(args: argparse.Namespace) -> FcFlags:
    """Return what the flags of `add_task_flags` ask for."""
    task = {key: value for flag, key in TASK.items() if (value := getattr(args, flag)) is not None}
    agree = (args.full_trace, args.gpu_aggr, args.num_classes)
    return FcFlags(task, args.backend, args.num_batches, args.repeats, *agree)


def check_values(given: Mapping[str, Any]) -> None:
    """Raise `UsageError` for a value that its rule refuses."""
    from keras_matrix.records.fc.spec import WORKLOAD
    from keras_matrix.runner.matrix import catalog
    from keras_matrix.runner.matrix.grammar import DEFAULTS, near

    rules = {**DEFAULTS, **catalog.load().workloads[WORKLOAD].params}
    for key, value in given.items():
        if fault := rules[key].fault(value):
            words = [choice for choice in rules[key].choices if isinstance(choice, str)]
            hint = near(value, words) if isinstance(value, str) else ""
            raise UsageError(f"--{FLAGS.get(key, key)}: {fault}{hint}")


def check_task(given: Mapping[str, Any]) -> None:
    """Raise `UsageError` for parameters that do not go together."""
    from keras_matrix.records.fc.rules import problems_of
    from keras_matrix.records.fc.spec import FcProblem

    known = {field.name for field in fields(FcProblem)}
    if problems := problems_of(FcProblem(**{key: value for key, value in given.items() if key in known})):
        raise UsageError("\n".join(as_flags(problems)))


def check_original(flags: FcFlags) -> None:
    """Raise `UsageError` where the original's own flags ask for another thing than is done here."""
    from keras_matrix.records.fc.spec import gpu_aggr

    device, workers = flags.task.get("device", "cpu"), max(flags.task.get("workers", [1]))
    mode = flags.task["mode"]
    if flags.gpu_aggr not in (None, own := gpu_aggr(mode, workers, device)):
        raise UsageError(
            f"--gpu-aggr: must be {own} for {mode} with {workers} workers on {device}, got {flags.gpu_aggr}; each "
            "worker keeps its weights on its own device, which --device chooses"
        )
    if flags.num_classes not in (None, 1):
        raise UsageError(f"--num-classes: must be 1, the column of the last layer, got {flags.num_classes}")


def as_flags(problems: Iterable[str]) -> list[str]:
    """Return what is wrong with a matrix that was made from flags, or with its parameters, by flag; each once."""
    return list(dict.fromkeys(map(_as_flag, problems)))


def _as_flag(problem: str) -> str:
    """Return a problem without the place in the matrix, which the user did not write."""
    text = re.sub(r"^runner fc:\d+: (cells\[0\](: |\.)|defaults\.)?", "", problem)
    name = re.match(r"(\w+)(\[\d+\])?: ", text)
    if name is None or name[1] not in FLAGS:
        return text
    return f"--{FLAGS[name[1]]}: {text[name.end() :]}"
