"""The forty faults that a run must survive: what happens under each, in the program's own words.

Promise: `ci/reliability.py` makes docs/reference/faults.md from this list and from the tests marked
`@pytest.mark.fault("F7", mutation="...")`; a test checks that each fault has one. The numbers never change.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault: its `title` says what goes wrong, its `promise` what the program does."""

    number: int
    title: str
    promise: str

    @property
    def name(self) -> str:
        """The name that a marker uses, such as F7."""
        return f"F{self.number}"


FAULTS = (
    Fault(
        1,
        "A cell crashes with SIGSEGV",
        "The status is `crash` with the signal; the end of the cell's output is in the record, and the next cell runs.",
    ),
    Fault(
        2,
        "A cell aborts, or exits with another code than 0",
        "SIGABRT is `crash`, another exit code is `error` with the code; the next cell runs.",
    ),
    Fault(
        3,
        "A cell exits with 0 but its result is missing, empty, truncated, too large or of another attempt",
        "The status is `error` with `no_result` or `bad_result`, never `ok`: a result counts only with the nonce, "
        "cell, repeat and attempt of its process, and at most 1 MiB of it is read.",
    ),
    # The runner sets no limit of its own without a container: the system's limits and control groups apply.
    Fault(
        4,
        "The machine's or container's memory is exhausted",
        "A cell that the kernel killed for memory is `oom_host`, and its record has the limit and the peak; Python's "
        "`MemoryError` is `error`. Any other SIGKILL is `crash`.",
    ),
    Fault(
        5,
        "A child of a cell is killed for memory and the cell itself ends well",
        "The result counts, with the warning `child_oom`.",
    ),
    Fault(
        6,
        "A device's memory is exhausted",
        "The exception that a backend raises while it computes is `oom_device` on a GPU or TPU and `error` on a CPU.",
    ),
    Fault(
        7,
        "A cell hangs and ignores SIGTERM",
        "The status is `timeout` at its time limit; the process with its tree, or the container, is killed, and the "
        "next cell runs.",
    ),
    Fault(
        8,
        "A cell leaves a grandchild in a session of its own that still has the output open",
        "The runner waits for the cell only, and the grandchild is ended with it.",
    ),
    Fault(
        9,
        "A cell prints a gigabyte",
        "The record has the head and the tail of the output; the runner's memory does not grow.",
    ),
    Fault(
        10,
        "A cell prints invalid UTF-8, NUL and terminal escapes",
        "Invalid bytes are replaced, escapes and control characters are removed: in the record and in the terminal.",
    ),
    Fault(
        11,
        "The loss is NaN or infinite",
        "The status is `diverged` with the epoch; the times stay in the record, and the loss is null. No NaN is "
        "written to any JSON.",
    ),
    # Whether a user's data are empty is known only in the cell, which runs the user's code: `error`, not bad input.
    Fault(
        12,
        "A batch size is 0, negative, boolean or huge, the data are empty, or no epoch is left to measure",
        "Settings are refused with exit code 2 before anything runs; empty data of a user's workload are `error` on "
        "every backend.",
    ),
    Fault(
        13,
        "A GPU is requested where there is none, or a backend silently uses the CPU",
        "The status is `device_mismatch`, and nothing is timed: a cell proves its device with a real tensor.",
    ),
    # Not `crash` or `error`, as for a fault of the cell: a further attempt may succeed, and the cell stays pending.
    Fault(
        14,
        "A GPU is lost during a run",
        "The attempt is `infra`, whatever its process says. After two lost attempts in a row the remaining cells on "
        "GPUs are not started: the same command measures them later.",
    ),
    Fault(
        15,
        "A backend cannot run a workload",
        "The status is `unsupported` with the reason, and the exit code stays 0.",
    ),
    Fault(
        16,
        "The clock is set, or the machine sleeps",
        "Durations come from a monotonic clock and do not change; the start of a record is only a label. A result "
        "whose epochs take zero, negative or impossible time is refused.",
    ),
    Fault(
        17,
        "The machine throttles, or a neighbour computes",
        "The figures get a warning with the rule and its value, and a disturbed block is measured again. A cell that "
        "still warms up is `unstable`.",
    ),
    # The warning is named `tensorboard`, whatever the reason. Cells use no callback: the files are written afterwards.
    Fault(
        18,
        "The TensorBoard folder is full or cannot be written",
        "The figures stay, with a warning: it is never an out-of-memory status.",
    ),
    Fault(
        19,
        "SIGINT or SIGTERM arrives, once or twice",
        "The runner ends its cell and exits with 130, at once if it is the second signal; nothing is published about "
        "the interrupted cell. The same command measures only what is missing.",
    ),
    Fault(
        20,
        "The runner is killed with SIGKILL, or the power fails, at any step",
        "No record is torn, lost or doubled: a record is synced before it gets its name, and the same command "
        "completes the run.",
    ),
    Fault(
        21,
        "The disk is full when a record or report is written",
        "The runner exits with 3 and names the path and what to do; no partial file remains, and published records are "
        "unchanged.",
    ),
    Fault(
        22,
        "The results folder cannot be written: EIO, EROFS, EACCES",
        "A probe at the start fails: exit code 3 with the path, before any cell runs.",
    ),
    Fault(
        23,
        "A file in `records/` is damaged or foreign",
        "It is moved to `records/corrupt/` and reported, never deleted, and its cell is measured again.",
    ),
    Fault(
        24,
        "A record has another schema version",
        "A newer one is refused with both versions; an older one is migrated when read, with all its figures.",
    ),
    Fault(
        25,
        "Two runners use one results folder",
        "The second one exits with 3 at once and names the process and host of the first; the folder is free as soon "
        "as that one has ended, also by SIGKILL. Locks on NFS are not supported.",
    ),
    Fault(
        26,
        "A matrix has 10,000 cells",
        "Planning, resuming and progress take time and memory in proportion to the cells.",
    ),
    Fault(
        27,
        "The container engine is down, or ends during a run",
        "At the start: exit code 3 before any cell. During a run: the attempt is `infra`, the runner waits for the "
        "engine, removes the containers that it left, and measures the cell again; if the engine does not return, exit "
        "code 3.",
    ),
    Fault(
        28,
        "An image is missing, or is for another processor",
        "All cells of the image are `infra` with one message that says how to get it, and no attempt is wasted; the "
        "other backends are measured. A run uses the same image throughout.",
    ),
    Fault(
        29,
        "A killed runner left processes or containers",
        "The next start on the same results folder ends them, and no others.",
    ),
    # A late result is not stored as superseded: what a lost machine still runs is ended, and its attempt is `infra`.
    Fault(
        30,
        "A machine of the cluster is lost, or returns late",
        "Its cells are measured elsewhere as a new attempt; of several attempts of a repeat only the latest counts.",
    ),
    Fault(
        31,
        "The caller's environment has variables that change figures, or secrets",
        "A cell gets an allowlist: no HOME, PYTHONPATH, backend flags or credentials of the caller.",
    ),
    Fault(
        32,
        "A matrix file is ambiguous, hostile or not YAML",
        "All problems are one error with lines and exit code 2, in a bounded time: no traceback, nothing is guessed.",
    ),
    Fault(
        33,
        "A name has path, shell or SQL characters, look-alikes or 300 letters",
        "A name that becomes an identifier is refused; any other name becomes a bound value or a hash. No file is "
        "written outside of its folder.",
    ),
    Fault(
        34,
        "A matrix expands to no cell, too many cells, or one cell twice",
        "It is refused with the count and the longest axis, before any cell exists.",
    ),
    Fault(
        35,
        "A cell leaves a link, a pipe or a device in the place of its result",
        "The status is `error` with `bad_result`; the file is not followed, read or waited for.",
    ),
    Fault(
        36,
        "BigQuery refuses, is overloaded or unreachable, or an answer is cut off",
        "What may pass is tried again with growing waits, up to a limit; an exceeded quota or a missing permission is "
        "named with what to do, exit code 3. All rows stay pending, and the next push sends them.",
    ),
    Fault(
        37,
        "An uploader is killed at any step, runs twice at once, or sends everything again",
        "Each row is in the warehouse exactly once.",
    ),
    # The flag for additive changes is a command of its own, which prints the difference with --dry-run.
    Fault(
        38,
        "A table lacks a column or has another type",
        "The push is refused with the difference before a row is sent; `uploader migrate` adds columns that may be "
        "null and changes nothing else.",
    ),
    Fault(
        39,
        "One row of a batch is refused",
        "The row is set aside with the reason and can be sent later; all others arrive.",
    ),
    Fault(
        40,
        "Credentials are missing, expired or in the environment",
        "Exit code 3 with how to log in. No token, key or variable is in any message, log, record or row.",
    ),
)
BY_NAME = {fault.name: fault for fault in FAULTS}
