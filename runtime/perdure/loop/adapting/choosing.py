"""Which decision is made: pure.

From a list nothing else is decided; otherwise from what was measured. A decision that counts is replaced at an epoch's
begin, where a checkpoint is due, or after a change of ranks, nowhere else: a resumed run goes on with the one that its
checkpoint names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite

from perdure.goodput.batch import BatchRange, best_batch, choice_of, is_worth
from perdure.goodput.rates import RateRule, rate_factor
from perdure.goodput.speed import Speed
from perdure.loop.adapting.adapt import Adapt
from perdure.loop.adapting.decision import BatchDecision, fitted, last_at


@dataclass(frozen=True)
class Here:
    """Where a decision may be made."""

    epoch: int
    consumed: int
    ranks: int
    saves: bool = False
    """Whether a checkpoint is due here, which will hold the decision."""

    @property
    def place(self) -> tuple[int, int]:
        """As a decision has it."""
        return self.epoch, self.consumed


@dataclass(frozen=True)
class RunMeasures:
    """What a run has measured of itself, as this rank knows it."""

    speed: Speed
    noise: float | None
    """The gradient noise scale in samples; None if it is not known yet."""
    nodes: int
    """On how many nodes the ranks are."""


def first(batch: int, adapt: Adapt, here: Here) -> BatchDecision:
    """The script's own batch and rates, in as many parts as the ranks need."""
    whole = BatchDecision(here.epoch, here.consumed, here.ranks, batch, batch, 0, None, 1.0)
    return _fitted(whole, adapt, here)


def _fitted(decision: BatchDecision, adapt: Adapt, here: Here) -> BatchDecision:
    """The same for the ranks here. If they have room for a smaller batch only, the rate follows it."""
    found = fitted(decision, here.ranks, adapt.per_rank[1], accumulates=adapt.accumulates)
    times = rate_factor(RateRule(adapt.rule), decision.noise or 0.0, decision.batch, found.batch)
    return replace(found, rate=decision.rate * times)


def kept(held: BatchDecision, adapt: Adapt, here: Here) -> BatchDecision:
    """The decision that counts, or the same batch for other ranks, or for ranks that have room for less."""
    has_room = held.micro <= adapt.per_rank[1] and (adapt.accumulates or not held.accumulation)
    if held.ranks == here.ranks and has_room:
        return held
    return _fitted(replace(held, epoch=here.epoch, consumed=here.consumed), adapt, here)


def from_list(
    listed: Sequence[BatchDecision], held: BatchDecision | None, batch: int, adapt: Adapt, here: Here
) -> tuple[BatchDecision, ...]:
    """What a list says from here to the epoch's end: the decision that counts now, and those that follow."""
    new = [one for one in listed if held is None or one.place > held.place]
    now = last_at(new, here.place) or held or first(batch, adapt, here)
    later = [one for one in new if one.epoch == here.epoch and one.place > here.place]
    return kept(now, adapt, here), *(_fitted(one, adapt, here) for one in later)


def from_measures(
    measured: RunMeasures | None, held: BatchDecision | None, batch: int, adapt: Adapt, here: Here
) -> BatchDecision:
    """The decision of the largest goodput, if it promises enough more than the one that counts."""
    before = kept(held or first(batch, adapt, here), adapt, here)
    at_a_place = here.saves or here.consumed == 0
    is_due = held is None or held.ranks != here.ranks or (at_a_place and held.place < here.place)
    if not is_due or measured is None or measured.noise is None or not isfinite(measured.noise):
        return before
    speed, noise, nodes = measured.speed, measured.noise, measured.nodes
    allowed = BatchRange(batch, adapt.up_to, (adapt.per_rank[0], adapt.per_rank[1]), adapt.accumulates)
    now = choice_of(speed, noise, allowed, nodes, here.ranks, batch=before.batch)
    best = best_batch(speed, noise, allowed, nodes, here.ranks, multiple=here.ranks)
    then = before
    if chosen := best if best and (now is None or is_worth(now, best)) else now:
        then = replace(before, batch=chosen.batch, micro=chosen.micro, accumulation=chosen.accumulation)
    rate = rate_factor(RateRule(adapt.rule), noise, batch, then.batch)
    epoch, consumed = here.place
    then = replace(then, epoch=epoch, consumed=consumed, noise=noise, rate=rate)
    return before if then.says_the_same(before) and then.counts_the_same(before, batch) else then


def warmed_up(samples: int, used: int, initial: int, batch: int) -> float:
    """The part of a rate that LEGW allows after `used` samples; a run with the initial batch warms up for `samples`."""
    whole = rate_factor(RateRule.LEGW, 0.0, initial, batch)
    return rate_factor(RateRule.LEGW, 0.0, initial, batch, consumed=used, warm_up=samples) / whole
