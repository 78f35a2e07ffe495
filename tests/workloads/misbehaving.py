"""Workloads with every kind of error in a user's code; each is `tests.workloads.misbehaving:NAME` in a matrix."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
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


def waiting(**_: Any) -> Any:
    """Behave well as soon as there is a file `go` in the service's results."""
    while not Path("/work/results/go").exists():
        time.sleep(0.05)
    return well()


def segfaulting(**_: Any) -> Any:
    return ctypes.string_at(0)


def killed(**_: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def exiting(code: int = 0, **_: Any) -> Any:
    sys.exit(code)


def flooding(**_: Any) -> Any:
    """Print a gigabyte."""
    block = b"x" * (1 << 20)
    for _ in range(1024):
        os.write(1, block)
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
    }
    raise RuntimeError(json.dumps(facts))


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
