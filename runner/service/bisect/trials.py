"""Measures the trials of a search: each is one session whose arms are the environments of the versions.

A trial that the state has answered is not measured again; one that was interrupted is continued.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from keras_matrix.analysis.regression import bisection
from keras_matrix.analysis.regression.bisection import BAD, CANDIDATE, GOOD, TOTAL, Answer, Trial
from keras_matrix.analysis.regression.gate import Rule
from keras_matrix.records.schema import Status
from keras_matrix.records.store import latest_attempts
from keras_matrix.records.text import duration
from keras_matrix.runner.environments.rebuilt import CannotRebuild, NotNow
from keras_matrix.runner.errors import InfrastructureError, RunnerError
from keras_matrix.runner.matrix.reader import Cell
from keras_matrix.runner.measure.experiment import Display, Experiment, measured, origin
from keras_matrix.runner.measure.request import RunRequest
from keras_matrix.runner.plan.adaptive import Question, numbers, step_times, weights_of
from keras_matrix.runner.plan.session import ArmRequest, Session
from keras_matrix.runner.service import exit_codes
from keras_matrix.runner.service.bisect.axes import Axis
from keras_matrix.runner.service.bisect.state import Answered, State
from keras_matrix.runner.service.bisect.text import answer_line, undecided_line


class BudgetSpent(RunnerError):
    """The next trial is expected to exceed the budget. The same command continues."""

    exit_code = exit_codes.UNDECIDED


class EndFailed(RunnerError):
    """Processes of an end fail that were measured before. The same command continues."""

    exit_code = exit_codes.NOT_OK


@dataclass(slots=True)
class Trials:
    """Measures the trials of one search. `process_s` is how long a process takes, estimated at first.

    `smallest` is the slowdown of the bad end below which there is nothing to search.
    """

    request: RunRequest
    cell: Cell
    axis: Axis
    state: State
    display: Display
    smallest: float
    process_s: float
    clock: Callable[[], float] = time.perf_counter
    _begun_s: float = 0.0
    _count: int = 0
    _blocks: int = field(default=bisection.LOOKS.blocks[0])
    _arms: dict[int, ArmRequest] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._begun_s = self.clock()

    def measure(self, trial: Trial, rule: Rule) -> Answer:
        """Return the answer of a trial, stored or measured, and print it.

        Raises `BudgetSpent`, `EndFailed` or `InfrastructureError`, such as `CannotRebuild`: then it is not answered.
        """
        place, self._count = self._count, self._count + 1
        if place >= len(self.state.answers):
            self._announce(trial)
            self.state.add(self._measured(trial, rule))
        found = self.state.answers[place]
        self.display.say(answer_line(trial, found.answer, rule, self.axis.labels))
        self._learn(trial, found, rule)
        return found.answer

    def _measured(self, trial: Trial, rule: Rule) -> Answered:
        ends = {name: self._arm(name, position) for name, position in trial.arms.items() if name != CANDIDATE}
        try:
            arms = {name: ends.get(name) or self._arm(name, position) for name, position in trial.arms.items()}
        except NotNow:
            raise
        except CannotRebuild as error:
            return Answered(dict(trial.arms), [], str(error))
        session, failures = self._tried(trial, rule, arms)
        records = [(arm, record) for arm in arms for record in session.records(arm)]
        times = step_times(records)
        weights = [weights_of(one, trial.arms, self.cell.cell_id) for one in trial.contrasts]
        logs = [] if failures else [list(numbers(one, times)) for one in weights]
        walls = [record.harness.wall_time_s for _, record in records if record.harness.wall_time_s]
        reason = failures.get(CANDIDATE) or "; ".join(failures.values()) or None
        return Answered(dict(trial.arms), logs, reason, {arm: run.run_id for arm, run in session.runs.items()}, walls)

    def _tried(self, trial: Trial, rule: Rule, arms: Mapping[str, ArmRequest]) -> tuple[Session, dict[str, str]]:
        """Measure a trial, again if a version fails that was measured before; return why arms have no figure, too."""
        session = self._session(trial, rule, arms)
        failures = self._failures(session, trial)
        if trial.contrasts != (TOTAL,) and (before := [text for arm, text in failures.items() if arm != CANDIDATE]):
            self.display.say(f"  {'; '.join(before)}; it was measured before: again")
            session = self._session(trial, rule, arms, anew=True)
            failures = self._failures(session, trial)
        if CANDIDATE in trial.arms and failures and CANDIDATE not in failures:
            raise EndFailed(f"{'; '.join(failures.values())}, which was measured before; the same command continues")
        return session, failures

    def _arm(self, name: str, position: int) -> ArmRequest:
        if position not in self._arms:
            try:
                self._arms[position] = self.axis.arm(position)
            except CannotRebuild as error:
                if name == CANDIDATE:
                    raise
                flag = f"--{name}: " if name in (GOOD, BAD) else ""
                raise type(error)(f"{flag}{self.axis.labels[position]}: {error}") from error
        return self._arms[position]

    def _session(self, trial: Trial, rule: Rule, arms: Mapping[str, ArmRequest], *, anew: bool = False) -> Session:
        seen: set[int] = set()

        def answered(logs: Sequence[Sequence[float]]) -> str | None:
            answer, blocks = bisection.answered(trial, rule, logs, self.smallest), len(logs[0])
            if answer is None and blocks not in seen:
                self.display.say(undecided_line(trial, logs, rule))
            seen.add(blocks)
            return answer

        question = Question(trial.contrasts, answered, rule.looks)
        versions = {name: self.axis.labels[position] for name, position in trial.arms.items()}
        about = {**origin("runner bisect", self.cell.settings), "bisects": self.axis.subject, **versions}
        request = replace(self.request, new=True) if anew else self.request
        return measured(request, Experiment([self.cell], about, arms, question=question), self.display)

    def _failures(self, session: Session, trial: Trial) -> dict[str, str]:
        """Return why the arms without a figure have none. Raises `InfrastructureError` if that is the machine.

        What the executor or the preflight refuses of a candidate only, such as a missing device, is the candidate's.
        """
        found = {}
        for arm, position in trial.arms.items():
            own = latest_attempts(session.records(arm))
            if not step_times([(arm, record) for record in own]):
                status, reason = (own[0].status, own[0].reason) if own else (Status.INFRA, "no process was measured")
                label = "" if arm == CANDIDATE else f"{self.axis.labels[position]}: "
                found[arm] = f"{label}{status}: {reason}"
                if status is Status.INFRA and arm != CANDIDATE:
                    raise InfrastructureError(f"{found[arm]}; once it is repaired, the same command continues")
        return found

    def _announce(self, trial: Trial) -> None:
        """Print what is measured next and its cost. Raises `BudgetSpent`."""
        versions = ", ".join(self.axis.labels[position] for position in trial.arms.values())
        least_s = self._cost_s(len(trial.arms), self._blocks)
        budget_s = self.request.budget_s
        if budget_s is not None and self.clock() - self._begun_s + least_s > budget_s:
            raise BudgetSpent(
                f"--budget: {duration(budget_s)} do not suffice for the next trial ({versions}), about "
                f"{duration(least_s)}; the same command continues, with a larger --budget if it measured nothing"
            )
        self.display.say(
            f"trial {self._count}: {versions} alternately: about {self._blocks} blocks x {len(trial.arms)} processes x "
            f"{self.process_s:.1f} s = {duration(least_s)}, at most "
            f"{duration(self._cost_s(len(trial.arms), bisection.LOOKS.blocks[-1]))}"
        )

    def _cost_s(self, arms: int, blocks: int) -> float:
        return arms * blocks * self.process_s

    def _learn(self, trial: Trial, found: Answered, rule: Rule) -> None:
        """Take the duration of a process, and of a usual step, from what was measured."""
        walls = list(itertools.chain.from_iterable(one.wall_s for one in self.state.answers))
        self.process_s = statistics.fmean(walls) if walls else self.process_s
        if trial.contrasts == (TOTAL,) and len(found.logs[0] if found.logs else ()) > 1:
            self._blocks = bisection.expected_blocks(found.logs[0], rule) or rule.looks.blocks[-1]
