"""Explanations of deviations between parity processes. Pure functions.

- A known cause (`analysis.parity.known_deviations`): within the cause's limit, and with the inexact operation computed
  exactly the figure is within its ordinary limit.
- Float32 losses over all steps: at most `OWN_FACTOR` times the deviation of one of the two backends from itself with
  two threads instead of one. Training amplifies rounding, and the order of a sum is rounding.
- Any other float32 figure, under three conditions: the float64 one is within its limit; the float32 one is at most
  `ROUNDING_FACTOR` times the deviation of each backend from its own float64 (a loss and a norm may agree by chance: for
  them the gradient is compared); and it is at most `NUDGE_FACTOR` times the deviation of one of the two from itself
  when each weight moves by one unit in its last place, as rounding moves it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from keras_matrix.analysis.parity.deviations import LIMITS
from keras_matrix.analysis.parity.known_deviations import KnownCause, applying
from keras_matrix.records.instruments.parity import Deviation, Facts, Operation, Pair, ParityFinding

OWN_FACTOR = 3.0
ROUNDING_FACTOR = 10.0
NUDGE_FACTOR = 3.0
TRAINING = ("float32", "losses")
# Single numbers, and the vector figure whose rounding causes theirs.
NUMBERS = {"loss": "gradient", "gradient_norm": "gradient"}


@dataclass(frozen=True, slots=True)
class Evidence:
    """Evidence for explanations, by backend: the deviation of its float32 losses with two threads, of its float32 from
    its own float64, of its float32 with nudged weights, and the facts of its parity process."""

    own: Mapping[str, float] = field(default_factory=dict)
    rounding: Mapping[str, Deviation] = field(default_factory=dict)
    nudged: Mapping[str, Deviation] = field(default_factory=dict)
    facts: Mapping[str, Facts] = field(default_factory=dict)


def explained(pair: Pair, evidence: Evidence) -> Pair:
    """Return the pair with explanations for findings due to a known cause or to the backends' own rounding."""

    def with_explanation(finding: ParityFinding) -> ParityFinding:
        text = _known(finding, pair, evidence.facts) or _within_own(finding, pair, evidence.own)
        return replace(finding, explanation=text or _within_rounding(finding, pair, evidence))

    return replace(pair, findings=list(map(with_explanation, pair.findings)))


def correctable(pair: Pair, facts: Mapping[str, Facts]) -> dict[tuple[str, str], frozenset[Operation]]:
    """Return, by backend and precision, the operations to compute exactly before known causes may explain the pair.

    All that apply to a backend are corrected together, so that the remaining deviation has no known cause.
    """
    found: dict[tuple[str, str], frozenset[Operation]] = {}
    for finding in pair.findings:
        if not _candidates(finding, pair, facts):
            continue
        for cause in applying(pair.backends, finding.precision, facts):
            key = (cause.backend, finding.precision)
            found[key] = found.get(key, frozenset()) | {cause.operation}
    return found


def _candidates(finding: ParityFinding, pair: Pair, facts: Mapping[str, Facts]) -> list[KnownCause]:
    """Return the causes that apply and may be as large as the finding."""
    value = finding.value
    if value is None:
        return []
    causes = applying(pair.backends, finding.precision, facts)
    return [cause for cause in causes if value <= cause.limits(facts[cause.backend]).get(finding.figure, 0.0)]


def _known(finding: ParityFinding, pair: Pair, facts: Mapping[str, Facts]) -> str | None:
    """Return the causes that may be as large as the finding, if no deviation remains once all are corrected."""
    causes = _candidates(finding, pair, facts)
    remaining = getattr(pair.corrected.get(finding.precision), finding.figure, None)
    if not causes or remaining is None or remaining > finding.limit:
        return None
    texts = "; ".join(dict.fromkeys(cause.text for cause in causes))
    return f"{texts}. Computed exactly instead, this figure is {f'{remaining:.0e}' if remaining else '0'}"


def is_unexplained_training(finding: ParityFinding) -> bool:
    """Return whether the finding is of float32 losses and is not explained yet."""
    return (finding.precision, finding.figure) == TRAINING and finding.explanation is None


def needs_nudge(pair: Pair, rounding: Mapping[str, Deviation]) -> bool:
    """Return whether the deviation of nudged weights is all that is missing to explain some figure."""
    return any(
        finding.explanation is None and _alike_rounded(finding, pair, rounding) is not None for finding in pair.findings
    )


def largest(deviations: Sequence[Deviation]) -> Deviation:
    """Return the largest of each figure of steps 1 and 2, None if it could not be computed."""

    def most(figure: str) -> float | None:
        return max((value for one in deviations if (value := getattr(one, figure)) is not None), default=None)

    loss, norm, gradient, update = map(most, ("loss", "gradient_norm", "gradient", "update"))
    return Deviation(loss=loss, gradient_norm=norm, gradient=gradient, update=update)


def _within_own(finding: ParityFinding, pair: Pair, own: Mapping[str, float]) -> str | None:
    if (finding.precision, finding.figure) != TRAINING or finding.value is None:
        return None
    for backend in sorted(pair.backends, key=lambda name: -own.get(name, 0.0)):
        if finding.value <= OWN_FACTOR * own.get(backend, 0.0):
            return (
                f"training amplifies rounding: {backend} deviates from itself by {own[backend]:.1e} when one thread "
                f"becomes two, and {finding.value:.1e} is within {OWN_FACTOR:g} times that"
            )
    return None


def _within_rounding(finding: ParityFinding, pair: Pair, evidence: Evidence) -> str | None:
    """Explain a float32 figure by rounding: both backends must round so, and a nudge of one must show as much."""
    alike = _alike_rounded(finding, pair, evidence.rounding)
    if alike is None or finding.value is None:
        return None
    for backend in pair.backends:
        moved = getattr(evidence.nudged.get(backend), finding.figure, None) or 0.0
        if finding.value <= NUDGE_FACTOR * moved:
            return (
                f"rounding, which this network amplifies: {backend} deviates from itself by {moved:.1e} when each "
                f"weight moves by one unit in its last place; {alike}"
            )
    return None


def _alike_rounded(finding: ParityFinding, pair: Pair, rounding: Mapping[str, Deviation]) -> str | None:
    """Return the text that float64 agrees and both backends deviate similarly from their own; None if not."""
    exact = getattr(pair.corrected.get("float64", pair.deviations.get("float64")), finding.figure, None)
    if finding.precision != "float32" or finding.figure == "losses" or finding.value is None or exact is None:
        return None
    figure = NUMBERS.get(finding.figure, finding.figure)
    value = getattr(pair.deviations.get("float32"), figure, None) if figure != finding.figure else finding.value
    rounded = {backend: getattr(rounding.get(backend), figure, None) for backend in pair.backends}
    own = {backend: apart for backend, apart in rounded.items() if apart is not None}
    if value is None or len(own) < len(rounded) or exact > LIMITS["float64"][finding.figure]:
        return None
    if value > ROUNDING_FACTOR * min(own.values()):
        return None
    parts = " and ".join(f"{backend}'s {figure} is {apart:.1e} from its own float64" for backend, apart in own.items())
    return f"{parts}, in which the two agree to {exact:.0e}"
