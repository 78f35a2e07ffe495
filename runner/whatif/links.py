"""The calibration of the link between workers: the times of collectives that a traced cell measured under load.

`collectives.json`, next to the profilers' files of a trace, has them; so may any file of the same format, a list of
`{"operation": "all_reduce", "ranks": 2, "bytes": 1048576, "seconds": 0.05}`, of NCCL with `"library": "nccl"`.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from keras_matrix.analysis.whatif.collectives import fit
from keras_matrix.analysis.whatif.graph import GraphError, LinkCalibration
from keras_matrix.records.codec import CodecError, decode
from keras_matrix.records.fc import calibration, network, spec
from keras_matrix.records.fc.calibration import TimedCollective
from keras_matrix.records.files import read_json
from keras_matrix.records.settings import Settings

NCCL = "nccl"


def of_file(path: Path, settings: Settings | None = None) -> LinkCalibration:
    """Return the calibration of a file. Raises `GraphError`, which names it."""
    try:
        found = decode(list[TimedCollective], read_json(os.path.realpath(path)), path.name)
    except OSError as error:
        raise GraphError(f"{path}: cannot be read: {error.strerror or error}") from error
    except CodecError as error:
        raise GraphError(f"{path}: is not a list of timed collectives ({error})") from error
    return of_times(found, str(path), settings)


def next_to(paths: Sequence[Path], settings: Settings | None = None) -> LinkCalibration | None:
    """Return the calibration that is stored with these files of a trace; None without one. Raises `GraphError`."""
    path = paths[0].parent / calibration.NAME
    return of_file(path, settings) if path.is_file() else None


def of_times(found: Sequence[TimedCollective], source: str, settings: Settings | None) -> LinkCalibration:
    """Return alpha and beta of timed collectives: of the operation and number of ranks that were timed most often.

    Of NCCL's collectives, whose algorithm depends on the size, also a table with the median of each size.
    """
    if not found:
        raise GraphError(f"{source}: contains no timed collective; trace the cell again")
    operation, ranks = Counter((one.operation, one.ranks) for one in found).most_common(1)[0][0]
    points = [(one.bytes, one.seconds) for one in found if (one.operation, one.ranks) == (operation, ranks)]
    link = fit(points, ranks=ranks, source=source, operation=operation, rate_bits_per_s=rate_of(settings))
    return replace(link, table=_table(found)) if any(one.library == NCCL for one in found) else link


def _table(found: Sequence[TimedCollective]) -> tuple[tuple[str, int, int, float], ...]:
    times_s: dict[tuple[str, int, int], list[float]] = defaultdict(list)
    for one in found:
        times_s[one.operation, one.ranks, one.bytes].append(one.seconds)
    return tuple((*key, median(values)) for key, values in sorted(times_s.items()))


def rate_of(settings: Settings | None) -> float | None:
    """Return the rate of a cell's links in bits a second; None for one that is not limited."""
    if settings is None or settings.workload != spec.WORKLOAD:
        return None
    return network.bits_per_s(spec.problem_of(settings).network)
