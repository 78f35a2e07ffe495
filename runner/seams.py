"""What a test may put in place of the real world: one value, so that the command line can be tested from end to end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runner.executors import Executor
    from runner.executors.engine import Engine
    from runner.executors.probe import Probe
    from runner.preflight.cells import Preflight


@dataclass(frozen=True, slots=True)
class Seams:
    """What replaces the executor, the probe, the container engine and the preflight; None means the real one."""

    executor: Executor | None = None
    probe: Probe | None = None
    engine: Engine | None = None
    preflight: Preflight | None = None
