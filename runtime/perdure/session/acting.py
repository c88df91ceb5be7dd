"""What a session does for a loader that adapts: exchanges, synchronisation of parts, and learning rates.

For `Session.loader(adapt=...)` and `Session.micro`. A session has one such loader at most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from perdure.errors import UserError
from perdure.goodput.batch import BatchRange
from perdure.goodput.hints import hints_of
from perdure.group.collectives import on_rank0
from perdure.loop.adapting.adapt import Adapt
from perdure.loop.adapting.adaptive_loader import AdaptiveLoader
from perdure.loop.adapting.choosing import RunMeasures
from perdure.loop.adapting.decision_list import DecisionHistory
from perdure.loop.adapting.part_gradients import PartGradients
from perdure.loop.adapting.parts import PartShare
from perdure.loop.adapting.scaled_rates import ScaledRates
from perdure.loop.run import Run
from perdure.state.holding import with_held
from perdure.state.wrapping import synchronize
from perdure.wire.scaling import ScalingHints

MICRO = "write `with session.micro() as last:` around forward and backward, and step `if last:`"


class Acting:
    """The loader's hooks (perdure.loop.adapting.adaptive_loader.PartHooks)."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._rates = ScaledRates(self._factor, self._stepped)
        self._gradients = PartGradients(lambda: self._rates.followed, lambda: run.registry.sharded_modules)
        run.part_gradients = self._gradients
        self._steps: list[Tensor | None] = []
        """Of each optimizer that has stepped since the last step of the session: StatisticalProgress.add."""
        self._follows = False
        """Whether there are optimizers whose steps are known."""
        run.progress.won.counts = True
        self._synchronizes = True
        self._registered = 0
        """How many objects were registered when their optimizers were last looked for."""

    @property
    def history(self) -> DecisionHistory:
        """The decisions of this training."""
        return self._run.progress.decisions

    def measured(self) -> RunMeasures | None:
        """What the run has measured of itself; None if it does not. Collective."""
        found = self._run.measurements
        if found is None:
            return None
        nodes = set(self._run.peers.gather("tells on which node it is", self._run.settings.member.node))
        speed = found.speed()
        return None if speed is None else RunMeasures(speed, found.noise(), len(nodes))

    def of_rank_0(self, decide: Callable[[], Any]) -> Any:
        """What `decide` returns on rank 0, on all ranks. Collective."""
        refuse_framework(self._run)
        return on_rank0(self._run.peers, "decides about the batch", decide)

    def part_begins(self, part: PartShare) -> None:
        """The script gets this part next."""
        self._synchronize(now=part.last)
        if (registered := len(self._run.registry.things)) != self._registered:
            self._registered = registered
            found = [*with_held([one for one in self._run.registry.named.values() if isinstance(one, Optimizer)])]
            self._rates.follow(found)
            self._follows = bool(found)
        self._gradients.part_begins(part)

    def step_done(self, worth: float) -> None:
        """A step is done, which has won so many samples of the script's own batch if no optimizer has skipped it."""
        steps, self._steps = self._steps, []
        self._run.progress.won.add(worth, steps if self._follows else [None])

    def _stepped(self, optimizer: Optimizer) -> None:
        """GradScaler does not call an optimizer that is to skip a step, but it tells a fused one in this attribute."""
        skips = getattr(optimizer, "found_inf", None)
        self._steps.append(skips if isinstance(skips, Tensor) else None)

    def pass_ends(self) -> None:
        """The script gets no further part for now."""
        self._synchronize(now=True)

    def _synchronize(self, *, now: bool) -> None:
        if now != self._synchronizes:
            self._synchronizes = now
            synchronize(self._run.replicas, self._run.registry.sharded_modules, now=now)

    def _factor(self, optimizer: Optimizer) -> float:
        loader = adaptive(self._run)
        if loader is None or _steps_on_another(self._run, loader):
            return 1.0
        part = loader.part
        if part and not part.last:
            raise UserError(
                f"{loader}: an optimizer steps after part of a batch that has {part.batch.parts} parts: {MICRO}"
            )
        if part and part.batch.parts > 1:
            self._gradients.check(optimizer, str(loader), part.batch.parts)
        return loader.rate


def _steps_on_another(run: Run, loader: AdaptiveLoader) -> bool:
    """Whether the script steps on a batch of another loader, and on none of this one."""
    if loader.walking and loader.part:
        return False
    return any(one.pending for one in run.progress.sources if one is not loader and not one.evaluates)


def tell_scaling(run: Run, loader: AdaptiveLoader) -> None:
    """From now on rank 0 reports the batch in use and, once it is measured, what other batches and ranks would win."""

    def measured() -> ScalingHints | None:
        known = run.measurements if run.settings.rank == 0 else None
        speed, noise = (known.speed(), known.noise()) if known else (None, None)
        if speed is None or noise is None:
            return None
        adapt = loader.adapt
        low, high = adapt.per_rank
        allowed = BatchRange(loader.plan.batch, adapt.up_to, (low, high), adapt.accumulates)
        return hints_of(allowed, noise, speed)

    run.figures.tell_scaling(lambda: loader.global_batch if run.settings.rank == 0 else None, measured)


def adaptive(run: Run) -> AdaptiveLoader | None:
    """The loader that adapts, if there is one."""
    return next((source for source in run.progress.sources if isinstance(source, AdaptiveLoader)), None)


def refuse_framework(run: Run) -> None:
    """UserError if a framework makes the steps."""
    if run.framework:
        raise UserError(
            f"adapt= cannot be used with {run.framework.name}, which makes the steps of the loop itself: leave it out, "
            f"or write the loop yourself"
        )


def check(run: Run, loader: str, adapt: Any, other: dict[str, bool]) -> None:
    """UserError if this loader cannot adapt. `other`: arguments that do not go with it, and whether they are given."""
    if not isinstance(adapt, Adapt):
        raise UserError(f"{loader}: adapt is {adapt!r}: give perdure.Adapt(up_to=..., per_rank=(..., ...))")
    for argument, given in other.items():
        if given:
            raise UserError(f"{loader}: adapt= does not go with {argument}: {_REASONS[argument]}")
    refuse_framework(run)
    known = adaptive(run)
    if known and str(known) != loader:
        raise UserError(f"{loader}: {known} adapts already, and the rates follow one batch only: leave adapt= out here")


_REASONS = {
    "train=False": "no step is made with an evaluation's batches",
    "per_epoch": "an epoch of a number of samples has batches of one size",
    "rewind=False": "an epoch that begins where the one before stopped has batches of one size",
    "drop_last": "a last batch that is smaller is weighted by its size, and which one is smaller would depend on the "
    "decisions",
}


def micro(run: Run) -> AbstractContextManager[bool]:
    """See `Session.micro`."""
    loader, gradients = adaptive(run), run.part_gradients
    if loader is None or gradients is None or loader.part is None:
        return nullcontext(enter_result=True)
    return _part_of(gradients, last=loader.part.last)


@contextmanager
def _part_of(gradients: PartGradients, *, last: bool) -> Iterator[bool]:
    yield last
    gradients.part_done(last=last)


def check_items(run: Run) -> None:
    """UserError for a loss that is weighted by its items alone, where a batch may have further parts."""
    loader = adaptive(run)
    if loader and loader.adapt.accumulates:
        raise UserError(
            f"weighted(loss, n=...): {loader} may hand out a batch in parts, and the items of the later ones are not "
            f"known: also give of=, this rank's items in the whole batch; or Adapt(accumulates=False); or leave n= "
            f"out, which weights by samples"
        )
