"""Where the time of a step goes: compute, fetch, preparation, batching and copy, and interference.

The split is differential (Mohan et al., "Analyzing and mitigating data stalls in DNN training", VLDB 2021): per block,
with T the observed arm, P a warm page cache, H batches from host memory and S batches on the device,

    fetch = (T - P) / T      preparation = (P - H) / T      batching and copy = (H - S) / T      compute = S / T

These arms carry no instruments. A warm page cache does not make every source fast (a network, a user's own delay): with
stage timers, the share of fetching in a worker's time on the warm arm is moved from preparation to fetch.

The second opinion is in-band: the wait share of the timed arm. What is neither compute nor wait is interference: on a
CPU, preparation and compute share cores, and training computes slower without waiting.
It is taken out of preparation, whose CPU work causes it, and what exceeds that out of a resolved batching and copy,
then out of fetch.

A part that its interval does not separate from zero is not resolved. H is used only where it is separable from S.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from keras_matrix.analysis.stalls.arms import Block
from keras_matrix.analysis.stalls.report import StallPart
from keras_matrix.analysis.stats.blocks import Estimate, arithmetic
from keras_matrix.records.text import percentage

COMPUTE, FETCH, PREPARATION, COPY, INTERFERENCE = "compute", "fetch", "preparation", "batching and copy", "interference"
MEANINGS = {
    COMPUTE: "the step with its batch on the device",
    FETCH: "waiting for storage: cold against warm page cache",
    PREPARATION: "waiting for decoding and resizing: warm pipeline against batches in host memory",
    COPY: "batches in host memory against batches on the device",
    INTERFERENCE: "computing slower because preparation uses the same cores",
}
LEAST_FETCHING = 0.1  # of a worker's time on the warm arm: below it, reading from the page cache is preparation
APART = 0.05  # differential and in-band shares further apart than this need an explanation


@dataclass(frozen=True, slots=True)
class Split:
    """The parts of a step, and the differential and in-band shares of input."""

    parts: tuple[StallPart, ...]
    stall: Estimate
    input_bound: Estimate | None
    interference: Estimate | None
    host_resolved: bool

    def share(self, name: str) -> float:
        """Return the share of a part, 0 if it is not resolved."""
        return next((p.share.centre for p in self.parts if p.name == name and p.share and p.resolved), 0.0)


def split(blocks: Sequence[Block]) -> Split:
    """Return the split of these blocks, of which there is at least one."""
    copied = _over(blocks, lambda b: None if b.host_s is None else (b.host_s - b.synthetic_s) / b.step_s)
    host_resolved = resolved(copied)
    shares = {
        COMPUTE: _over(blocks, lambda b: b.synthetic_s / b.step_s),
        FETCH: _over(blocks, lambda b: _fetch(b, host_resolved)),
        PREPARATION: _over(blocks, lambda b: _warm(b, host_resolved) * (1 - _fetching(b))),
        COPY: copied,
    }
    stall = _over(blocks, lambda b: 1 - b.synthetic_s / b.step_s)
    waits = _over(blocks, lambda b: b.wait_share)
    interference = _over(blocks, _interference)
    assert stall is not None
    clear = interference is not None and resolved(interference)
    if clear and interference is not None:
        shares = _without(shares, interference.centre) | {INTERFERENCE: interference}
    mean_step = arithmetic([b.step_s for b in blocks])
    assert mean_step is not None
    parts = tuple(_part(name, share, mean_step.centre) for name, share in shares.items())
    return Split(parts, stall, waits, interference if clear else None, host_resolved)


def resolved(estimate: Estimate | None) -> bool:
    """Return whether a share is above zero beyond its interval; without an interval, whether its estimate is."""
    if estimate is None:
        return False
    return estimate.centre > 0 if estimate.low is None else estimate.low > 0


def caveats(found: Split) -> list[str]:
    """Return what a reader must know about the two opinions."""
    if found.input_bound is None:
        return []
    apart = found.stall.centre - found.input_bound.centre
    if abs(apart) <= APART:
        return []
    differential, inband = percentage(found.stall.centre), percentage(found.input_bound.centre)
    text = f"differential ({differential}) and in-band ({inband}) shares are {abs(apart) * 100:.1f} points apart: "
    if apart > 0:
        return [
            text + "training waits less than the pipeline costs. The rest is interference: preparation and compute use "
            "the same cores (always on a CPU) or the same interpreter, and each slows the other. More workers do not "
            "remove it; cheaper preparation does."
        ]
    return [
        text + "the timed arm waits longer than the pipeline costs. It synchronises every step, which exposes waits "
        "that the other arms hide behind queued steps. The differential share is the one to use."
    ]


def _over(blocks: Sequence[Block], share: Callable[[Block], float | None]) -> Estimate | None:
    return arithmetic([value for block in blocks if (value := share(block)) is not None])


def _fetch(block: Block, host_resolved: bool) -> float | None:
    """Return the share of the cold arm above the warm one, and of fetching in the warm one; None without either."""
    if _cold(block) is None and not _fetching(block):
        return None
    return (_cold(block) or 0.0) + _warm(block, host_resolved) * _fetching(block)


def _cold(block: Block) -> float | None:
    """Return the share of the cold arm above the warm one; None if the warm arm is the observed one."""
    if block.warm_s is None or block.warm_s == block.step_s:
        return None
    return (block.step_s - block.warm_s) / block.step_s


def _warm(block: Block, host_resolved: bool) -> float:
    """Return the share of the warm arm above batches in memory."""
    floor = block.host_s if host_resolved and block.host_s is not None else block.synthetic_s
    warm = block.step_s if block.warm_s is None else block.warm_s
    return (warm - floor) / block.step_s


def _fetching(block: Block) -> float:
    """Return the share of fetching in the time that a worker of the warm arm spends on a sample; 0 if it is small.

    Of a cold timed arm, the time that the cold arm is slower than the warm one is subtracted from its fetching.
    """
    if block.stages is None:
        return 0.0
    slower_s = (_cold(block) or 0.0) * block.step_s * max(1, block.workers or 1) / block.batch
    warm_s = max(block.stages.fetch_cpu_s, block.stages.fetch_s - slower_s)
    share = warm_s / (warm_s + block.stages.prepare_s) if warm_s else 0.0
    return share if share >= LEAST_FETCHING else 0.0


def _interference(block: Block) -> float | None:
    return None if block.wait_share is None else 1 - block.synthetic_s / block.step_s - block.wait_share


def _without(shares: dict[str, Estimate | None], interference: float) -> dict[str, Estimate | None]:
    """Return the shares with interference taken out of preparation, then out of the others that are resolved."""
    left, found = interference, dict(shares)
    for name in (PREPARATION, COPY, FETCH):
        share = found[name]
        # The time of a copy that is not resolved is in preparation already.
        if share is None or share.centre <= 0 or (name == COPY and not resolved(share)):
            continue
        taken = min(left, share.centre)
        left -= taken
        found[name] = _moved(share, -taken)
    return found


def _moved(share: Estimate, by: float) -> Estimate:
    low, high = (None if end is None else end + by for end in (share.low, share.high))
    return Estimate(share.centre + by, low, high, share.count, share.method)


def _part(name: str, share: Estimate | None, step_s: float) -> StallPart:
    time = None if share is None else _scaled(share, step_s)
    return StallPart(name, share, time, resolved(share), MEANINGS[name])


def _scaled(share: Estimate, step_s: float) -> Estimate:
    low, high = (None if end is None else end * step_s for end in (share.low, share.high))
    return Estimate(share.centre * step_s, low, high, share.count, share.method)
