"""Checks that all ranks have the same steps, and leaves out those that do something else than most."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from keras_matrix.analysis.whatif.graph import GraphError
from keras_matrix.analysis.whatif.reconstruct.matching import LEAST_SHARED
from keras_matrix.analysis.whatif.reconstruct.xplane.reading import Profile
from keras_matrix.records.traces.steps import is_part


def check_steps(workers: Mapping[int, Sequence[Profile]]) -> None:
    """Raise `GraphError` if two workers have other numbers of steps, or two files of a worker of devices."""
    (first, profiles_of_first), *others = workers.items()
    wanted = _steps(profiles_of_first)
    for worker, profiles in others:
        if (own := _steps(profiles)) != wanted:
            raise GraphError(
                f"{profiles[0].path}: worker {worker} has {own} steps, worker {first} in {profiles_of_first[0].path}"
                f" has {wanted}; record the same steps on all ranks"
            )
    for profiles in workers.values():
        for profile in profiles:
            if len(profile.runs) != len(profiles[0].runs):
                raise GraphError(
                    f"{profile.path}: has operations of {len(profile.runs)} devices, {profiles[0].path} of"
                    f" {len(profiles[0].runs)}; give the files of one run"
                )


def _steps(profiles: Sequence[Profile]) -> int:
    return sum(len(profile.windows) for profile in profiles)


def leave_out_unusual(workers: Mapping[int, Sequence[Profile]]) -> list[str]:
    """Leave out steps in which a profiler stopped, or that share less than 80 % of their operations with the others.

    Returns what to say about them.
    """
    unfinished, unusual = set[int](), set[int]()
    for profiles in workers.values():
        first = 0
        for profile in profiles:
            first += len(profile.windows)
            if is_part([Counter(run.identity for run in runs) for runs in _all_runs(profile)]):
                unfinished.add(first - 1)
    for profiles in workers.values():
        counts = [Counter(run.identity for run in runs) for profile in profiles for runs in _all_runs(profile)]
        usual = _usual([own for step, own in enumerate(counts) if step not in unfinished])
        for step, own in enumerate(counts):
            if (usual & own).total() < LEAST_SHARED * max(own.total(), usual.total()):
                unusual.add(step)
    total = _steps(next(iter(workers.values())))
    said = [
        f"step {step + 1} is left out: the profiler stopped before it ended, with a part of its operations"
        for step in sorted(unfinished)
    ]
    unusual -= unfinished
    if len(unusual) + len(unfinished) == total:
        unusual.clear()
    if unusual:
        numbers = ", ".join(str(step + 1) for step in sorted(unusual))
        said.append(f"step {numbers} is left out: less than 80 % of its operations are those of the other steps")
    _leave_out(workers, unusual | unfinished)
    return said


def _leave_out(workers: Mapping[int, Sequence[Profile]], steps: Collection[int]) -> None:
    for profiles in workers.values():
        first = 0
        for profile in profiles:
            kept = [at for at in range(len(profile.windows)) if first + at not in steps]
            first += len(profile.windows)
            profile.windows = [profile.windows[at] for at in kept]
            profile.runs = {device: [runs[at] for at in kept] for device, runs in profile.runs.items()}


def _all_runs(profile: Profile) -> list[list[Any]]:
    return [[run for steps in profile.runs.values() for run in steps[at]] for at in range(len(profile.windows))]


def _usual(counts: Sequence[Counter[Any]]) -> Counter[Any]:
    """Return the operations that most steps have exactly; of several the last, which is the most settled."""
    alike = Counter(frozenset(own.items()) for own in counts)
    return max(enumerate(counts), key=lambda one: (alike[frozenset(one[1].items())], one[0]))[1]
