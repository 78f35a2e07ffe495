"""How often `runner bisect` finds the right one of many versions, on the recorded noise of real processes.

    lab/run bisect [--versions 64] [--slowdown 0.05] [--trials 20] [--write]

Each trial plants the slowdown at a random version and searches for it with the product's own rules. Every block of a
test gets the noise of one recorded block (lab/recordings, made by `lab/run power record`), in stretches of neighbours;
its processes get the versions at random. `--write` puts the tables into docs/lab/bisect.md.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from keras_matrix.analysis.regression.bisection import (
    LOOKS,
    Bisection,
    SearchOutcome,
    Trial,
    TrialAnswer,
    answered,
    most_steps,
    search,
)
from keras_matrix.analysis.regression.gate import Rule
from keras_matrix.records.text import percentage
from lab.power import draws
from lab.power.command import BUDGETS_S, SEED, head, stored

DOCUMENT = Path(__file__).parents[1] / "docs" / "lab" / "bisect.md"
BEGIN, END = "<!-- bisect: begin -->", "<!-- bisect: end -->"
ARMS = (draws.BASE, draws.SAME, draws.SLOWER)
MANY = 200


@dataclass(slots=True)
class Planted:
    """A sequence of versions of which those from `first_slow` on are slower, measured with recorded noise."""

    noise: draws.Array
    first_slow: int
    slowdown: float
    generator: np.random.Generator
    blocks: list[int] = field(default_factory=list)
    processes: int = 0

    def measure(self, trial: Trial, rule: Rule) -> TrialAnswer:
        """Measure a trial until it is answered or no look is left."""
        logs = self._logs(trial, LOOKS.blocks[-1])
        for count in LOOKS.blocks:
            shown_logs = tuple(tuple(series[:count]) for series in logs)
            if answered(trial, rule, shown_logs):
                break
        self.blocks.append(count)
        self.processes += count * len(trial.arms)
        return TrialAnswer(shown_logs)

    def _logs(self, trial: Trial, count: int) -> list[list[float]]:
        """Return each contrast of a trial; a recording has three processes a block, so that of four arms the two
        pairs get blocks of their own."""
        several = [list(contrast) for contrast in trial.tested] if len(trial.arms) > len(ARMS) else [list(trial.arms)]
        times = {name: column for names in several for name, column in self._times(names, trial, count).items()}
        return [sum(w * times[name] for name, w in contrast.items()).tolist() for contrast in trial.contrasts]  # type: ignore[union-attr]

    def _times(self, names: Sequence[str], trial: Trial, count: int) -> Mapping[str, draws.Array]:
        places = draws.stretches(np.arange(len(self.noise), dtype=float), 1, count, self.generator)[0].astype(int)
        rows = self.generator.permuted(self.noise[places], axis=1)
        slow = [math.log1p(self.slowdown) * (trial.arms[name] >= self.first_slow) for name in names]
        return {name: rows[:, place] + slow[place] for place, name in enumerate(names)}


def noise_of(recording: draws.Recording) -> draws.Array:
    """Return the log step times of a recording's blocks, shape (blocks, 3), as if its three arms were equal."""
    complete_blocks = [block for block in recording.blocks if all(arm in block for arm in ARMS)]
    logs = np.log([[block[arm].step_time_s for arm in ARMS] for block in complete_blocks])
    centred: draws.Array = logs - logs.mean(axis=0)
    return centred


@dataclass(frozen=True, slots=True)
class Result:
    """A trial's result, whether it is right, and its cost."""

    found: Bisection
    right: bool
    blocks: Sequence[int]
    processes: int

    @property
    def wrong(self) -> bool:
        """Whether another version was reported as found."""
        return self.found.outcome is SearchOutcome.FOUND and not self.right


def trials(noise: draws.Array, versions: int, slowdown: float, count: int, seed: int) -> list[Result]:
    """Return the results of `count` searches."""
    generator = np.random.default_rng(seed)
    results = []
    for _ in range(count):
        planted = Planted(noise, int(generator.integers(1, versions)), slowdown, generator)
        search_result = search(versions, planted.measure)
        right = search_result.outcome is SearchOutcome.FOUND and search_result.first_bad == planted.first_slow
        results.append(Result(search_result, right, planted.blocks, planted.processes))
    return results


def tables(versions: int, slowdown: float, count: int) -> Iterator[str]:
    """Yield the table of the criterion, and that of many trials of several slowdowns."""
    recorded = [recording for condition in BUDGETS_S for recording in draws.recordings(stored(condition))]
    yield f"`lab/run bisect`, seed {SEED}: {versions} versions, {percentage(slowdown)} slower from a random one on."
    yield from head(
        f"{count} trials",
        "right",
        "wrong",
        "undecided",
        "steps: median, most",
        "blocks of a step: median, most",
        "cost",
    )
    for recording in recorded:
        results = trials(noise_of(recording), versions, slowdown, count, SEED)
        right, wrong = sum(r.right for r in results), sum(r.wrong for r in results)
        steps = [len(r.found.steps) for r in results]
        blocks = [step.blocks for r in results for step in r.found.steps]
        cost_s = statistics.median(r.processes for r in results) * recording.block_cost_s(draws.SAME) / 2
        counts = f"{right} | {wrong} | {count - right - wrong}"
        yield (
            f"| {recording.condition}, {recording.backend} | {counts} | {_span(steps)} | {_span(blocks)} | "
            f"{cost_s / 60:.0f} min |"
        )
    yield from head(
        f"{MANY} trials: right, wrong, undecided", *(percentage(share) for share in (0.02, 0.03, 0.05, 0.1))
    )
    for recording in recorded:
        cells = [
            _shares(trials(noise_of(recording), versions, share, MANY, SEED + 1)) for share in (0.02, 0.03, 0.05, 0.1)
        ]
        yield f"| {recording.condition}, {recording.backend} | {' | '.join(cells)} |"
    yield ""
    yield f"At most {most_steps(versions)} steps are made; the ends and the confirmation are two more sessions."


def _span(values: Sequence[int]) -> str:
    return f"{statistics.median(values):.0f}, {max(values)}" if values else "-"


def _shares(results: Sequence[Result]) -> str:
    right, wrong = sum(r.right for r in results), sum(r.wrong for r in results)
    undecided = len(results) - right - wrong
    return ", ".join(percentage(part / len(results)) for part in (right, wrong, undecided))


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--versions", type=int, default=64)
    parser.add_argument("--slowdown", type=float, default=0.05)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--write", action="store_true", help=f"put them into docs/lab/{DOCUMENT.name}")
    args = parser.parse_args()
    lines = list(tables(args.versions, args.slowdown, args.trials))
    print("\n".join(lines))
    if args.write:
        before, _, remainder = DOCUMENT.read_text().partition(BEGIN)
        DOCUMENT.write_text(f"{before}{BEGIN}\n\n" + "\n".join(lines) + f"\n\n{END}{remainder.partition(END)[2]}")


if __name__ == "__main__":
    main()
