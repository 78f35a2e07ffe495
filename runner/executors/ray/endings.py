"""How a cell has ended whose workers were on several machines, of which the first one measured.

A process that only provides workers ends well whenever it is let go, however the cell ends. So the end of the cell is
that of the measuring process, unless another one says more about why it failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from keras_matrix.records.codec import CodecError, decode
from keras_matrix.records.files import read_json
from keras_matrix.records.schema import CellResult
from keras_matrix.runner.cell.job import RESULT_LIMIT_BYTES, Job
from keras_matrix.runner.executors import Outcome
from keras_matrix.runner.executors.ray import folders
from keras_matrix.runner.executors.ray.agent import Ended

KILLED = 9
NOT_CONNECTED, WORKER_DIED, FAR = ".NotConnected", ".WorkerDied", "on another machine"


def copied(ended: Ended, job: Job) -> None:
    """Write the files of a process to the job's folders here. Raises OSError and `tarfile.TarError`."""
    folders.unpacked(ended.folder, Path(job.folder))
    if ended.outputs is not None and job.outputs_dir is not None:
        folders.unpacked(ended.outputs, Path(job.outputs_dir))


def combined(measured: Outcome, others: Sequence[Ended], job: Job) -> Outcome:
    """Return the outcome of a cell whose measuring process has left its files here; others' files replace them.

    Raises OSError and `tarfile.TarError` if these cannot be written.
    """
    result = _result(job)
    if _is_well(measured) or (job.goes_on and result is not None and result.device is not None):
        return measured
    failed = next((one for one in others if not _is_well(one.outcome)), None)
    if failed is not None:
        copied(failed, job)
        return failed.outcome
    name, message = (result.exception or "", result.message or "") if result else ("", "")
    if name.endswith(NOT_CONNECTED):
        return replace(measured, infrastructure=f"rendezvous: {message}")
    kills = sum(one.outcome.oom_kills or 0 for one in others)
    if kills and name.endswith(WORKER_DIED) and FAR in message:
        return replace(measured, exit_code=None, signal=KILLED, oom_kills=kills)
    return measured


def _is_well(outcome: Outcome) -> bool:
    return outcome.exit_code == 0 and outcome.infrastructure is None


def _result(job: Job) -> CellResult | None:
    """Return what the measuring process has written, None without a valid result."""
    try:
        return decode(CellResult, read_json(job.result_path, RESULT_LIMIT_BYTES), "result")
    except (OSError, CodecError):
        return None
