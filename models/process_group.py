"""PyTorch: connects processes of one machine, or of several, by gloo on a CPU and by NCCL on GPUs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from keras_matrix.models.process import take_share

# Connected processes wait for each other without a limit, over a slow network or for a slower one: a cell has its own
# limit, and if a process dies the others are ended.
COLLECTIVE_LIMIT = timedelta(days=7)


@dataclass(frozen=True, slots=True)
class Member:
    """This process among `size` ones: its rank, its number among the `here` processes of this machine, its network."""

    rank: int
    size: int
    number: int
    here: int
    device: str
    interface: str


def prepare(member: Member) -> dict[str, Any]:
    """Bind this process to its share of the CPUs, or to its GPU; return PyTorch's name of the network's library."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", member.interface)
    if member.device == "cpu":
        torch.set_num_threads(take_share(member.number, member.here))
        return {"backend": "gloo"}
    torch.cuda.set_device(member.number)
    os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={member.interface}")  # "=": the interface of exactly this name
    # With a device NCCL connects here, within the time limit, and not at the first collective.
    return {"backend": "nccl", "device_id": torch.device("cuda", member.number)}


def connect(member: Member, library: dict[str, Any], store: Any, limit: timedelta) -> None:
    """Connect to the other processes, which meet at a store. Raises RuntimeError unless all do so within the limit."""
    dist.init_process_group(**library, store=store, rank=member.rank, world_size=member.size, timeout=limit)
    dist.group.WORLD.set_timeout(COLLECTIVE_LIMIT)


def settle(device: torch.device) -> None:
    """Return when the device is idle."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
