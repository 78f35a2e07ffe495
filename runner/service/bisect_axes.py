"""What `runner bisect` searches, each version as an arm of a session; a search's plan and result as text.

An axis is versions of a package, locks by date, or commits.
An axis makes the environment of a version when it is first measured. A version that cannot be made raises
`CannotRebuild`, which leaves it out unless it is an end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from keras_matrix.analysis.comparison.ratios import bracketed, change_text
from keras_matrix.analysis.regression.bisection import (
    CANDIDATE,
    LOOKS,
    Bisection,
    CandidateSide,
    SearchOutcome,
    Trial,
    TrialAnswer,
    TriedCandidate,
    estimate,
    most_steps,
    rule_for,
    step_of,
    usual_steps,
)
from keras_matrix.analysis.regression.gate import Rule
from keras_matrix.analysis.stats.blocks import Estimate
from keras_matrix.records.codec import to_json
from keras_matrix.records.text import duration, percentage
from keras_matrix.runner.environments import commits, dated
from keras_matrix.runner.environments.layered import BaseEnvironment, Layer, distributions, layered
from keras_matrix.runner.executors.process.interpreter import Interpreter
from keras_matrix.runner.plan.session import ArmRequest

LISTED = 12
MORE = "a quieter machine, more epochs, or versions that differ more may decide it; the same command measures anew"


@dataclass(frozen=True, slots=True)
class Cache:
    """The folder of cached environments, and how it is reported that one is made."""

    folder: Path
    say: Callable[[str], None]


class VersionAxis(Protocol):
    """A sequence of versions, the good end first and the bad one last. `subject` names what they are versions of."""

    @property
    def subject(self) -> str:
        """What is searched."""

    @property
    def labels(self) -> Sequence[str]:
        """The names of the versions."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """The values that must be equal for a search to be continued."""

    def arm(self, position: int) -> ArmRequest:
        """Return the arm of a version, with its environment. Raises `CannotRebuild`."""

    def differences(self, before: int, after: int) -> list[str]:
        """Return what else differs between two versions."""

    def close(self) -> None:
        """Remove what is not worth keeping."""


@dataclass(frozen=True, slots=True)
class PackageAxis:
    """The versions of one package, or of one set, each on top of the same base environment.

    `wheels` are those of its versions in the user's own folders, with their hashes.
    """

    name: str
    labels: Sequence[str]
    base: BaseEnvironment
    listing: dated.Listing
    cache: Cache
    wheels: Sequence[str] = ()

    @property
    def subject(self) -> str:
        """The package."""
        return self.name

    @property
    def identity(self) -> Mapping[str, Any]:
        """The package, its versions, the wheels of the user's own folders, and the environment of the others."""
        identity = {"package": self.name, "versions": list(self.labels), "base": dict(self.base.versions)}
        return identity | ({"wheels": list(self.wheels)} if self.wheels else {})

    def arm(self, position: int) -> ArmRequest:
        """Return the arm of a version."""
        return arm_of(self._environment(position))

    def differences(self, before: int, after: int) -> list[str]:
        """Return the other packages that differ: those that pip changed along with it."""
        lists = [distributions(str(self._environment(position) / "bin" / "python")) for position in (before, after)]
        lock_before, lock_after = (
            "\n".join(f"{k}=={v}" for k, v in versions.items() if k != self.name) for versions in lists
        )
        return dated.changed(lock_before, lock_after)

    def close(self) -> None:
        """Keep the environments, which the next command may need."""

    def _environment(self, position: int) -> Path:
        requirements = dated.requirements(self.name, self.labels[position], self.base.versions, self.listing)
        return layered(Layer(requirements, (), self.base), self.cache.folder, self.cache.say)


@dataclass(frozen=True, slots=True)
class DateAxis:
    """The different locks between two days."""

    locks: Sequence[dated.DatedLock]
    python: str
    cache: Cache

    @property
    def subject(self) -> str:
        """The lock."""
        return "the lock"

    @property
    def labels(self) -> Sequence[str]:
        """The first day of each lock."""
        return [str(dated_lock.day) for dated_lock in self.locks]

    @property
    def identity(self) -> Mapping[str, Any]:
        """The locks and the Python."""
        return {"locks": [dated_lock.lock for dated_lock in self.locks], "python": self.python}

    def arm(self, position: int) -> ArmRequest:
        """Return the arm of a lock."""
        lock = self.locks[position].lock
        return arm_of(dated.locked_environment(lock, self.python, self.cache.folder, self.cache.say))

    def differences(self, before: int, after: int) -> list[str]:
        """Return the packages that changed on that day."""
        return dated.changed(self.locks[before].lock, self.locks[after].lock)

    def close(self) -> None:
        """Keep the environments."""


@dataclass(frozen=True, slots=True)
class CheckoutAxis:
    """The commits of a checkout, each imported from a worktree, on top of the same base environment."""

    checkout: commits.Checkout
    commits: Sequence[commits.Commit]
    base: BaseEnvironment
    cache: Cache

    @property
    def subject(self) -> str:
        """The checkout's folder."""
        return str(self.checkout.folder)

    @property
    def labels(self) -> Sequence[str]:
        """The commits, with their subjects."""
        return [commit.label for commit in self.commits]

    @property
    def identity(self) -> Mapping[str, Any]:
        """The checkout, its commits, and the environment."""
        shas = [commit.sha for commit in self.commits]
        return {"checkout": str(self.checkout.folder), "commits": shas, "base": dict(self.base.versions)}

    def arm(self, position: int) -> ArmRequest:
        """Return the arm of a commit; the user's own modules in the checkout also come from the worktree."""
        tree = self.checkout.worktree(self.commits[position], self.cache.folder)
        paths = [str(path) for path in (tree / "src", tree) if path.is_dir()]
        layered_arm = arm_of(layered(Layer((), paths, self.base), self.cache.folder, self.cache.say))
        return ArmRequest(
            layered_arm.python, None, layered_arm.versions, worktree=(str(self.checkout.folder), str(tree))
        )

    def differences(self, before: int, after: int) -> list[str]:
        """Return the command that shows the commits."""
        return [f"git -C {self.checkout.folder} log -p {self.commits[before].sha[:10]}..{self.commits[after].sha[:10]}"]

    def close(self) -> None:
        """Remove the worktrees."""
        self.checkout.remove_worktrees(self.cache.folder)


def arm_of(environment: Path) -> ArmRequest:
    """Return the arm that is measured in an environment of the cache."""
    python = str(environment / "bin" / "python")
    return ArmRequest(python, None, Interpreter(python, foreign=True).versions())


def plan_lines(axis: VersionAxis, process_s: float) -> list[str]:
    """Return the candidates and what a search costs, before anything is measured."""
    labels = axis.labels
    shown_labels = list(labels) if len(labels) <= LISTED else [*labels[: LISTED // 2], "...", *labels[-LISTED // 2 :]]
    steps, (least, *_, most) = most_steps(len(labels)), LOOKS.blocks

    def total(steps_made: int, block_count: int) -> str:
        return duration((3 * steps_made + 6) * block_count * process_s)  # the ends are two arms, the confirmation four

    step_text = f"{least} to {most} blocks of 3 processes of about {process_s:.1f} s"
    return [
        f"{len(labels)} versions of {axis.subject}: {', '.join(shown_labels)}",
        f"at most {steps} steps besides the ends and the confirmation; a step is {step_text}: "
        f"{duration(3 * least * process_s)} to {duration(3 * most * process_s)}",
        f"in all {total(usual_steps(len(labels)), least)} to {total(steps, most)}, without versions that cannot be "
        f"measured, which are not counted; every test at {percentage(rule_for(len(labels)).level)}",
    ]


def plan_values(axis: VersionAxis, process_s: float) -> Mapping[str, Any]:
    """Return the same as JSON values."""
    steps = most_steps(len(axis.labels))
    return {"subject": axis.subject, "versions": list(axis.labels), "most_steps": steps, "process_s": process_s}


def result_lines(bisection: Bisection, labels: Sequence[str], differences: Sequence[str]) -> list[str]:
    """Return the result: the steps, the verdict, the size, the confidence, and what else differs."""
    lines = [step_line(number, step, labels) for number, step in enumerate(bisection.steps, 1)]
    lines += ["", verdict(bisection, labels)]
    if bisection.outcome is SearchOutcome.FOUND and bisection.share is not None:
        lines.append(f"its share of the complete change, {ratio(bisection.total)}: {percentage(bisection.share)}")
    if bisection.tests:
        lines.append(
            f"confidence: every test of the path is right with at least {percentage(bisection.confidence)} "
            f"({bisection.tests} tests at {percentage(bisection.level)})"
        )
    return lines + [f"differs, too: {difference}" for difference in differences]


def verdict(bisection: Bisection, labels: Sequence[str]) -> str:
    """Return the result in one sentence."""
    good, bad = labels[bisection.last_good], labels[bisection.first_bad]
    steps_between = [step for step in bisection.steps if bisection.last_good < step.position < bisection.first_bad]
    reasons_text = "; ".join(f"{labels[step.position]}: {step.reason or step.side}" for step in steps_between)
    slower_text = f"slower than {good}: {bisection.reason or ratio(bisection.size or bisection.total)}"
    return {
        SearchOutcome.FOUND: f"found: {bad} is {slower_text}",
        SearchOutcome.RANGE: f"undecided: the first slow one is after {good}, at the latest {bad}; "
        f"left out: {reasons_text}",
        SearchOutcome.NOT_CONFIRMED: f"undecided: the steps lead to {bad}, which is not confirmed to be {slower_text}",
        SearchOutcome.NOT_SLOWER: f"--bad: {bad} against {good}: {ratio(bisection.total)}: {_not_slower(bisection)}",
        SearchOutcome.ENDS_UNDECIDED: f"undecided: whether {bad} is {slower_text} after "
        f"{blocks_text(bisection.total)}; {MORE}",
        SearchOutcome.NOT_MEASURED: f"not measured: {bisection.reason}",
    }[bisection.outcome]


def _not_slower(bisection: Bisection) -> str:
    """Return in which way the bad end is not slower, so that there is nothing to search."""
    bounds = bisection.total.bounds if bisection.total else None
    if bounds is not None and bounds[1] < 1:
        return "faster: nothing to search; are --good and --bad exchanged?"
    return f"not slower by --smallest ({bisection.smallest}): nothing to search"


def blocks_text(estimate: Estimate | None) -> str:
    """Return how many blocks an estimate has."""
    return f"{estimate.count if estimate else 0} blocks"


def undecided_line(trial: Trial, logs: Sequence[Sequence[float]], rule: Rule) -> str:
    """Return what a look shows that has not decided its trial."""
    answer = TrialAnswer(tuple(map(tuple, logs)))
    shown_estimate = estimate(answer, trial.contrasts.index(trial.shown), rule)
    following = rule.looks.following(len(logs[0]))
    next_text = f"continuing to {following}" if following else "no look left"
    return f"  {blocks_text(shown_estimate)}: {ratio(shown_estimate)}: undecided, {next_text}"


def step_line(number: int, step: TriedCandidate, labels: Sequence[str]) -> str:
    """Return one step."""
    return f"step {number}: {_side_of(step, labels)}"


def answer_line(trial: Trial, answer: TrialAnswer, rule: Rule, labels: Sequence[str]) -> str:
    """Return what a trial has found, as soon as it is known."""
    if CANDIDATE in trial.arms:
        return f"  {_side_of(step_of(trial.arms[CANDIDATE], answer, rule), labels)}"
    new, base = (labels[trial.arms[choose(trial.shown, key=trial.shown.__getitem__)]] for choose in (max, min))
    if answer.reason is not None:
        return f"  {new} against {base}: not measured: {answer.reason}"
    shown_index = trial.contrasts.index(trial.shown)
    return f"  {new} against {base}: {ratio(estimate(answer, shown_index, rule))}, {len(answer.logs[0])} blocks"


def _side_of(step: TriedCandidate, labels: Sequence[str]) -> str:
    if step.side is CandidateSide.UNUSABLE:
        return f"{labels[step.position]} cannot be measured: {step.reason}"
    return f"{labels[step.position]} is {step.side}: {ratio(step.ratio)} to {labels[0]}, {step.blocks} blocks"


def result_values(
    bisection: Bisection, axis: VersionAxis, differences: Sequence[str], suspects: Sequence[str]
) -> Mapping[str, Any]:
    """Return the result as JSON values."""
    labels = axis.labels
    steps = [{**to_json(step), "version": labels[step.position]} for step in bisection.steps]
    names = {
        "last_good": labels[bisection.last_good],
        "first_bad": labels[bisection.first_bad],
        "versions": list(labels),
    }
    derived = {"confidence": bisection.confidence if bisection.tests else None, "share": bisection.share}
    lists = {"differences": list(differences), "suspects": list(suspects), "steps": steps}
    return {"subject": axis.subject, **to_json(bisection), **names, **derived, **lists}


def ratio(estimate: Estimate | None) -> str:
    """Return a ratio as a slowdown with its interval: a percentage, or a factor from 2 on."""
    if estimate is None:
        return "no ratio"
    return bracketed(estimate) if estimate.centre >= 2 else change_text(estimate)
