"""Perdure: who gets how many devices, by the operator's own allocator; where, by a scheduler; and a job's own batch.

A job's agent fits what it has measured and chooses its batch as a trainer does: where its ranks change, and at the end
of an epoch and where it makes a commit if another batch is worth it. The operator sees what a report holds, and nothing
else of a job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import inf
from typing import Final

from e2e.bench.pollux import their_speed
from e2e.bench.pollux.measurements import Model, Noise, StepTime
from e2e.bench.pollux.their_policy import limits
from e2e.bench.pollux.their_speed import Batch
from e2e.bench.pollux.world import DEVICES_OF_NODE, NODES, Devices, Job
from perdure.goodput.batch import BatchRange, best_batch, choice_of, is_worth
from perdure.goodput.fitting import StepTimes, fit
from perdure.goodput.speed import Speed
from perdure.wire.scaling import ScalingHints
from perdure.wire.settings import DEFAULT_EVERY_SECONDS
from perdure_operator.decide.packing import Pool
from perdure_operator.decide.sharing import PoolJob, Speedup, share, speedup_table, weighed

POOL: Final = Pool(((DEVICES_OF_NODE, NODES),))
SIZES: Final = (1, 2, 3, *range(DEVICES_OF_NODE, NODES * DEVICES_OF_NODE + 1, DEVICES_OF_NODE))
"""That a job may have: parts of a node, and whole nodes."""

Times = frozenset[tuple[tuple[int, int, int], StepTime]]


class PerdureAgent:
    """Chooses a batch where the ranks change, and at an epoch's end and at a commit if it promises enough."""

    def __init__(self, *, saves_every: float = DEFAULT_EVERY_SECONDS, at_each_look: bool = False) -> None:
        """`saves_every`: inf for no commit. `at_each_look`: whenever the policy looks, too."""
        self.saves_every = saves_every
        self._at_each_look = at_each_look

    def begin(self, job: Job) -> Batch:
        """See Agent."""
        nodes, ranks = len(job.trains_on), sum(job.trains_on)
        bounds = limits(job.model)
        if not job.model.fixed_batch and job.noise is not None:
            choice = best_batch(_speed(job), _phi(job.noise, job.model), _range(job.model), nodes, ranks)
            if choice:
                return their_speed.within(Batch(choice.micro, choice.accumulation), bounds, ranks)
        batch = job.model.fixed_batch or max(bounds.initial, bounds.micro[0] * ranks)
        return their_speed.within(their_speed.split(batch, bounds, ranks), bounds, ranks)

    def go_on(self, job: Job, epoch_ended: bool, saves: bool = False) -> Batch:
        """See Agent."""
        if not (epoch_ended or saves or self._at_each_look) or job.model.fixed_batch or job.noise is None:
            return job.batch
        nodes, ranks = len(job.trains_on), sum(job.trains_on)
        speed, noise, allowed = _speed(job), _phi(job.noise, job.model), _range(job.model)
        now = choice_of(speed, noise, allowed, nodes, ranks, batch=job.batch.of(ranks))
        then = best_batch(speed, noise, allowed, nodes, ranks)
        if then is None or (now is not None and not is_worth(now, then)):
            return job.batch
        return their_speed.within(Batch(then.micro, then.accumulation), limits(job.model), ranks)


class PerdurePolicy:
    """Asks the operator's allocator for sizes, and puts members where there is room."""

    def __init__(
        self, change_seconds: float, *, together: bool = True, by_fair_share: bool = True, plain_sum: bool = False
    ) -> None:
        """`change_seconds` is what the allocator is told that a change costs. See `place` for `together`.

        Without `by_fair_share` each job counts beside itself with one device. With `plain_sum` the allocator is told
        speedups whose harmonic mean is the largest where the sum of the true ones is.
        """
        self._change = change_seconds
        self._together = together
        self._by_fair_share = by_fair_share
        self._plain_sum = plain_sum
        self._changed: dict[str, float] = {}

    def divide(self, now: float, jobs: Sequence[Job]) -> Mapping[str, Devices]:
        """See Policy."""
        known = [self._known(now, job) for job in jobs]
        sizes = share(POOL, weighed(POOL, known) if self._by_fair_share else known)
        given = place(jobs, sizes, together=self._together)
        self._changed |= {job.name: now for job in jobs if len(given[job.name]) != len(job.devices)}
        return given

    def _known(self, now: float, job: Job) -> PoolJob:
        size = len(job.devices)
        known = PoolJob(
            job.name,
            age_seconds=now - job.submitted,
            minimum=1,
            has=size,
            changed_seconds=now - self._changed.get(job.name, -inf),
            change_seconds=self._change,
            spread_at=size if len(set(job.devices)) > 1 else 0,
            wants=1,
        )
        if job.noise is None:
            return known
        most = min(2 * job.most_ranks_profiled, job.model.most_ranks)
        table = speedup_table(_hints(job), [size for size in SIZES if size <= max(most, 1)])
        if self._plain_sum:
            table = {size: Speedup(_as_summed(one.together), _as_summed(one.apart)) for size, one in table.items()}
        return replace(known, speedups=table)


def place(jobs: Sequence[Job], sizes: Mapping[str, int], *, together: bool) -> dict[str, Devices]:
    """Where the ranks of each job are: newcomers are placed first, then the job with most new ranks.

    Who shrinks leaves the nodes with the fewest of its ranks. Ranks of one who grows stay where they are, and new ones
    go where there is room, on its own nodes first. If it may be put `together`, they all go to as few nodes as have
    room for them; those who leave for it train until the others have joined, and hold their devices. A job for whose
    growth that leaves no room has what it had.
    """
    found = {job.name: _smaller(job.devices, sizes[job.name]) for job in jobs}
    held = {job.name: Counter(found[job.name]) | _held_on(job, sizes[job.name]) for job in jobs}
    used = sum(held.values(), Counter[int]())
    free = {node: DEVICES_OF_NODE - used[node] for node in range(NODES)}
    for name in sorted(found, key=lambda name: (bool(found[name]), len(found[name]) - sizes[name])):
        lacks = sizes[name] - len(found[name])
        if not 0 < lacks <= sum(free.values()):
            continue
        devices = _larger(found[name], sizes[name], dict(free))
        if together:
            compact = _compact(found[name], sizes[name], free)
            devices = compact if len(set(compact)) < len(set(devices)) else devices
        found[name] = devices
        for node, count in (Counter(devices) - held[name]).items():
            free[node] -= count
    return found


def _held_on(job: Job, size: int) -> Counter[int]:
    """Its devices that ranks train on until their joiners are warm, if it does not shrink."""
    return job.held() if job.joining is not None and size >= len(job.devices) else Counter[int]()


def _smaller(devices: Devices, size: int) -> Devices:
    on = Counter(devices)
    return tuple(sorted(sorted(devices, key=lambda node: (-on[node], node))[:size]))


def _larger(devices: Devices, size: int, free: dict[int, int]) -> Devices:
    """Nodes that it is on first; then one node with room for all the rest, the fullest of these; else the emptiest."""
    found, own = list(devices), set(devices)
    while lacks := size - len(found):
        room = [node for node, left in free.items() if left]
        fitting = [node for node in room if free[node] >= lacks]
        near = [node for node in room if node in own]
        if fitting and not near:
            node = min(fitting, key=lambda node: free[node])
        else:
            node = max(near or room, key=lambda node: free[node])
        taken = min(lacks, free[node])
        found += [node] * taken
        free[node] -= taken
    return tuple(sorted(found))


def _compact(devices: Devices, size: int, free: Mapping[int, int]) -> Devices:
    """As few nodes as have room for all of it, its own devices included: one of its own if that is enough."""
    own = Counter(devices)
    room = {node: left + own[node] for node, left in free.items()}
    fitting = [node for node in room if room[node] >= size]
    if fitting:
        return (max(fitting, key=lambda node: (own[node], -room[node])),) * size
    found: list[int] = []
    for node in sorted(room, key=lambda node: (-room[node], -own[node])):
        found += [node] * min(size - len(found), room[node])
    return tuple(sorted(found))


def _range(model: Model) -> BatchRange:
    return BatchRange(model.initial_batch, model.most_batch, model.micro, accumulates=True)


def _phi(noise: Noise, model: Model) -> float:
    """The noise scale in samples."""
    return noise.var / noise.sqr * model.initial_batch if noise.sqr > 0 else inf


def _speed(job: Job) -> Speed:
    return _fitted(their_speed.frozen(job.times))


@cache
def _fitted(times: Times) -> Speed:
    return fit(StepTimes(*key, 0, time.step - time.sync, time.step) for key, time in sorted(times))


def _hints(job: Job) -> ScalingHints:
    """As the job reports them."""
    speed, model = _speed(job), job.model
    assert job.noise is not None
    phi = _phi(job.noise, model)
    return ScalingHints(
        model.initial_batch, model.most_batch, *model.micro, True, phi,
        speed.alpha, speed.beta, speed.c_in, speed.d_in, speed.c_out, speed.d_out, speed.profiled,
    )  # fmt: skip


def _as_summed(speedup: float) -> float:
    """Its reciprocal falls evenly as the speedup rises."""
    return 1 / (POOL.devices + 1 - speedup)
