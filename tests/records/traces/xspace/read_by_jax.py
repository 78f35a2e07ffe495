"""Prints what JAX's own reader sees in each file named, as one line of JSON; with `record FOLDER` makes one first.

    python read_by_jax.py [record FOLDER] FILE...

A value is `{file: [[plane, [[line, [[event, start_ns, end_ns, {statistic: value}], ...]], ...]], ...]}`.
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any


def recorded(folder: Path) -> list[Path]:
    """Return the file that the installed JAX writes for a few steps of a small program."""
    import jax
    import jax.numpy as jnp

    step = jax.jit(lambda x: jnp.tanh(x @ x).sum())
    x = jnp.ones((64, 64))
    step(x).block_until_ready()
    with jax.profiler.trace(folder):
        for number in range(3):
            with jax.profiler.StepTraceAnnotation("step", step_num=number):
                step(x).block_until_ready()
    return sorted(folder.rglob("*.xplane.pb"))


def read(file: Path) -> list[Any]:
    """Return the planes of a file as JAX's reader gives them."""
    from jax.profiler import ProfileData

    data = file.read_bytes()
    profile = ProfileData.from_serialized_xspace(gzip.decompress(data) if file.suffix == ".gz" else data)
    return [
        [plane.name, [[line.name, [_event(event) for event in line.events]] for line in plane.lines]]
        for plane in profile.planes
    ]


def _event(event: Any) -> list[Any]:
    stats = {name: value for name, value in event.stats if isinstance(value, str | int | float)}
    return [event.name, event.start_ns, event.end_ns, stats]


if __name__ == "__main__":
    names = sys.argv[1:]
    files = recorded(Path(names[1])) if names[0] == "record" else []
    files += map(Path, names[2 if names[0] == "record" else 0 :])
    print(json.dumps({str(file): read(file) for file in files}))
