"""The contract of an executor: where its cells run. To write one, begin here, then read `Executor`.

A cell's process receives a `Job` and leaves its result in `Job.folder`. An executor may start that process anywhere, if
its row in `runner.executors.registry` states what of the process is on the runner's machine. The runner relies on that
row alone and compares no executor's name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from keras_matrix.runner.executors import Outcome


@dataclass(frozen=True, slots=True)
class Contract:
    """Which parts of a cell are on the runner's own machine, and what the executor must do for those that are not.

    `local_machine`: cells run on the CPUs and GPUs of the runner's machine. If so, the runner examines this machine for
    them: its GPUs before the run, the CPUs that `cpus` requests, the free memory before a second process stays alive.
    If not, it examines nothing, and the executor refuses what its machines cannot do (`Outcome.refused`,
    `Outcome.missing_device`). Every `Outcome` of a process that ended then names the machine in `Outcome.machine`,
    which becomes the record's; without it the attempt is recorded as `infra`, since its figures belong to no machine.

    `local_pids`: `Running.root` is a process of this machine, which may be looked up in /proc. If not, `root` returns
    None, the executor itself samples memory, GPUs and disturbances where the process is, and reports them in the
    `Outcome` (None for what it does not measure); `end_leftovers` and `close` end the processes on their machine.

    `local_files`: the process reads and writes the files that the `Job` names, at these paths or mounted at others. If
    not, the executor copies `folder` to the process before it starts, and back before `finish` returns: the runner then
    reads result, trace, profile and model from there. `compile_cache_dir`, `autotune_dir`, `cuda_cache_dir` and
    `outputs_dir` are copied in the same way where they are not None. `import_roots` are only read. `dataset_dir` is
    a path on the cell's machine, None for the usual place there.

    `local_software`: cells run in the runner's Python environment, or in one named by --base-env or --new-env. If not,
    they bring their own, as an image does: `Executors.software` says which, the runner judges no installed version, and
    refuses these flags.
    """

    local_machine: bool = True
    local_pids: bool = True
    local_files: bool = True
    local_software: bool = True

    def problem(self, outcome: Outcome) -> str | None:
        """Return how an outcome breaks the contract, so that it cannot become a measurement; None if it does not."""
        has_ended = outcome.exit_code is not None or outcome.signal is not None or outcome.deadline_exceeded
        if has_ended and not self.local_machine and outcome.machine is None:
            return "machine: the executor does not say on which machine the process ran"
        return None
