"""Workloads with every kind of error in a user's code; each is `tests.workloads.misbehaving:NAME` in a matrix."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np


def _model(learning_rate: float = 0.01) -> Any:
    import keras

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.SGD(learning_rate), loss="mse")
    return model


def _data() -> tuple[Any, Any]:
    return np.ones((8, 4), "float32"), np.zeros((8, 1), "float32")


def well(**_: Any) -> Any:
    return _model(), *_data()


def raising(**_: Any) -> Any:
    raise RuntimeError("the workload says no\nand more")


def hanging(**_: Any) -> Any:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(60)


def napping(seconds: float = 5.0, **_: Any) -> Any:
    time.sleep(seconds)
    return well()


def waiting(**_: Any) -> Any:
    """Behave well as soon as there is a file `go` in the service's results."""
    while not Path("/work/results/go").exists():
        time.sleep(0.05)
    return well()


def segfaulting(**_: Any) -> Any:
    os.write(2, b"the last words\n")
    return ctypes.string_at(0)


def aborting(**_: Any) -> Any:
    os.abort()


def starved(**_: Any) -> Any:
    """Take more memory than this process may have, which Python notices itself."""
    used_bytes = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used_bytes + (64 << 20), resource.getrlimit(resource.RLIMIT_AS)[1]))
    return bytearray(1 << 30)


def killed(**_: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def exiting(code: int = 0, **_: Any) -> Any:
    sys.exit(code)


def flooding(**_: Any) -> Any:
    """Print a gigabyte, between a first and a last line."""
    block = b"x" * (1 << 20)
    os.write(1, b"the first line\n")
    for _ in range(1024):
        os.write(1, block)
    os.write(1, b"\nthe last line\n")
    return _model(), *_data()


def garbage(**_: Any) -> Any:
    os.write(1, b"\xff\xfe\x00\x1b[31mred\x1b[0m\x1b]0;title\x07 done\n")
    raise ValueError("garbage was printed")


def diverging(**_: Any) -> Any:
    return _model(1e30), *_data()


def orphaning(marker: str = "", **_: Any) -> Any:
    """Leave a grandchild in a session of its own that holds the output open."""
    code = f"import time; marker = {marker!r}; time.sleep(600)"
    subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    return _model(), *_data()


def family(marker: str = "", hang: bool = False, **_: Any) -> Any:
    """Start a child, and a grandchild in its own session whose parent has ended; their environments are empty."""
    sleeping = f"import time; marker = {marker!r}; time.sleep(600)"
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {sleeping!r}], start_new_session=True)"
    subprocess.Popen([sys.executable, "-c", sleeping], env={})
    subprocess.run([sys.executable, "-c", code], env={}, check=True)
    return hanging() if hang else well()


def linking(target: str = "/etc/hostname", **_: Any) -> Any:
    """Put a link where the result belongs, and end as if all were well."""
    Path("result.json").symlink_to(target)
    os._exit(0)


def piping(**_: Any) -> Any:
    os.mkfifo("result.json")
    os._exit(0)


def empty(**_: Any) -> Any:
    return _model(), np.ones((0, 4), "float32"), np.zeros((0, 1), "float32")


def telling(**_: Any) -> Any:
    """Print the whole environment."""
    print(dict(os.environ), flush=True)
    raise RuntimeError("the environment was received")


def threads_received(**_: Any) -> Any:
    """Compute enough for every pool to have its threads, then print where each thread may run."""
    import keras

    product = keras.ops.matmul(np.ones((512, 512), "float32"), np.ones((512, 512), "float32"))
    assert float(keras.ops.convert_to_numpy(product)[0, 0]) == 512.0
    for status in Path("/proc/self/task").glob("*/status"):
        text = status.read_text(encoding="ascii")
        print(f"affinity={text.partition('Cpus_allowed_list:')[2].split()[0]}", flush=True)
    raise RuntimeError("the threads were received")


def hoarding(megabytes: int = 2000, **_: Any) -> Any:
    blocks = [bytearray(1 << 20) for _ in range(megabytes)]
    for block in blocks:
        block[::4096] = b"x" * len(block[::4096])
    return _model(), *_data()


def child_hoarding(megabytes: int = 2000, **_: Any) -> Any:
    """Have a child take too much memory, and train on where it was killed."""
    code = f"blocks = [b'x' * (1 << 20) for _ in range({megabytes})]"
    subprocess.run([sys.executable, "-c", code], check=False)
    return _model(), *_data()


def confined(**_: Any) -> Any:
    """Say what this process may do."""
    status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line)
    facts = {
        "capabilities": int(status["CapEff"], 16) | int(status["CapBnd"], 16),
        "no_new_privileges": int(status["NoNewPrivs"]),
        "root_user": os.getuid() == 0,
        "networks": sorted(path.name for path in Path("/sys/class/net").iterdir()),
        "writable": [name for name in ("/", "/etc", "/usr", "/opt/venv", "/work") if _writes(Path(name))],
        "writes_import_root": _writes(Path(__file__).parent),
        "writes_scratch": _writes(Path.cwd()) and _writes(Path("/tmp")),
        "succeeded": [name for name, attempt in _attempts().items() if _succeeds(attempt)],
    }
    raise RuntimeError(json.dumps(facts))


def _attempts() -> dict[str, Callable[[], Any]]:
    """Return what needs a network or a right that only root has, each of which raises OSError without it."""
    probe = Path("/tmp/owned")
    probe.touch()
    libc = ctypes.CDLL(None, use_errno=True)

    def system_call(result: int) -> None:
        if result != 0:
            raise OSError(ctypes.get_errno(), "refused")

    return {
        "connect": lambda: socket.create_connection(("192.0.2.1", 80), 2),
        "resolve": lambda: socket.getaddrinfo("example.org", 80),
        "raw socket": lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW).close(),
        "change owner": lambda: os.chown(probe, 54321, 54321),
        "become another user": lambda: os.setresuid(54321, 54321, 54321),
        "become a group": lambda: os.setgroups([0, 54321]),
        "make a device": lambda: os.mknod("/tmp/disk", stat.S_IFBLK | 0o600, os.makedev(8, 0)),
        "change root": lambda: os.chroot("/tmp"),
        "raise priority": lambda: os.setpriority(os.PRIO_PROCESS, 0, -5),
        "mount": lambda: system_call(libc.mount(b"none", b"/tmp", b"tmpfs", 0, None)),
        "new user namespace": lambda: system_call(libc.unshare(0x10000000)),
        "set host name": lambda: socket.sethostname("other"),
    }


def _succeeds(attempt: Callable[[], Any]) -> bool:
    try:
        attempt()
    except OSError:
        return False
    return True


def _writes(folder: Path) -> bool:
    probe = folder / "probe"
    try:
        probe.touch()
        probe.unlink()
    except OSError:
        return False
    return True


def sharing(megabytes: int = 64, **_: Any) -> Any:
    """Have PyTorch's workers pass on batches through shared memory."""
    import torch

    batches = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.ones(megabytes, 1 << 18)), batch_size=megabytes, num_workers=1
    )
    for (batch,) in batches:
        assert float(batch.sum()) > 0
    return _model(), *_data()
