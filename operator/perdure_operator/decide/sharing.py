"""How the jobs of a pool share its devices: one function from what is known of them to the size of each. Pure.

Each job counts with 1 / speedup, the time that its work takes, and the sum of these is made small: as a job's speedup
falls off with its size, what it gains by one more device is soon less than what another one gains. `weighed` lets that
time count beside the one with a fair share of the pool (Pollux, Qiao et al., OSDI '21, section 4.2). A change of size
costs time, and has to be earned back within EARNED_SECONDS, so that a job that changes counts as slower by that time.

A small pool is divided in the best way. In a large one that would take too long: what is left over is given, step by
step, to the job whose 1 / speedup falls most per device.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, permutations, product
from typing import Final

from perdure.goodput.hints import speedups
from perdure.wire.scaling import ScalingHints
from perdure_operator.decide.packing import Packed, Pool, pack

EARNED_SECONDS: Final = 300.0
"""In so many seconds of training a change has to earn what it costs."""
REST_SECONDS: Final = 60.0
"""How long a job keeps a size, unless another one has less than its minimum."""
CROWDED: Final = 0.65
"""Above this mean speedup per device, another node is worth its price."""
IDLE: Final = 0.35
"""Below this mean speedup per device, nodes are given back."""
EXACT_STEPS: Final = 5_000
"""As far as that many steps go, devices are divided in the best way."""
FEW_WAYS: Final = 600
"""Up to so many ways to divide a pool are tried one by one, each with the nodes that it needs."""
FEW_JOBS: Final = 3
"""Up to so many jobs are put on nodes in each order; of more, the largest first, or those that lose most."""
ROUNDS: Final = 3
"""How often a pool is divided because jobs are on more nodes than it took them to be, and because from the sizes of one
division another one is better."""
SMALL_SIZE: Final = 8
TABLE_RATIO: Final = 1.2
"""Of the sizes above SMALL_SIZE those are looked at that are at least so much larger than the one before."""

_NOTHING: Final = 1e-9


@dataclass(frozen=True)
class Speedup:
    """How much faster than one rank on one node a job trains."""

    together: float
    """With all ranks on one node."""
    apart: float
    """With ranks on several nodes."""


@dataclass(frozen=True)
class PoolJob:
    """What is known of one job of a pool. Sizes are in members."""

    name: str
    age_seconds: float
    minimum: int
    ranks: int = 1
    """Ranks of each member: a rank takes one device."""
    has: int = 0
    """The size that it was given last; 0 if it was given none."""
    holds: int = 0
    """Its members that may be on nodes now, if they are more than it was given."""
    waits: bool = False
    """Whether it never had a run: it was given a size, and may not have found room for it."""
    changed_seconds: float = math.inf
    """Since when it has that size."""
    change_seconds: float = 0.0
    """What a change of its size costs here."""
    speedups: Mapping[int, Speedup] = field(default_factory=dict)
    """By size, for the sizes that it may have; without its minimum, nothing is known of its speed."""
    spread_at: int = 0
    """The size at which its members are on several nodes now; 0: they are on one, or it is not known."""
    wants: int = 0
    """The size to have while nothing is known of its speed, if there is room; 0: its minimum."""
    mute: bool = False
    """Whether it has told nothing of its speed for so long that nobody waits for it. Then it gets what it wants: up to
    an equal share of the pool before others grow, and above that what they leave."""
    weight: float = 1.0
    """How much its time counts beside that of others."""

    @property
    def is_measured(self) -> bool:
        """Whether its speed is known."""
        return self.minimum in self.speedups

    @property
    def rests(self) -> bool:
        """Whether its size was changed a moment ago."""
        return self.has > 0 and self.changed_seconds < REST_SECONDS


def weighed(pool: Pool, jobs: Sequence[PoolJob]) -> list[PoolJob]:
    """The jobs with their weights: the speedup of each with a fair share of the pool's devices.

    So a job that makes good use of devices is not held back because it is fast with few.
    """
    fair = -(-pool.devices // len(jobs)) if jobs else 0
    return [replace(job, weight=_fair_speed(job, fair, pool.widest)) for job in jobs]


Tables = dict[str, "list[_Row]"]
"""The rows of each job by its name, so that one look at a pool computes them once."""


def share(pool: Pool, jobs: Sequence[PoolJob], tables: Tables | None = None) -> dict[str, int]:
    """The size of each job, by its name; 0 for a job for which even its minimum has no room.

    The minimum comes first: of those that have one already, then of the oldest. No younger job gets a room for which an
    older one waits. With the sizes that it has answered it answers the same again.
    """
    ordered = _oldest_first(jobs)
    tables = {} if tables is None else tables
    sizes = _divide(pool, ordered, tables)
    for _ in range(ROUNDS):
        if all(sizes[job.name] == job.has for job in ordered):
            break
        ordered = [replace(job, has=sizes[job.name]) for job in ordered]
        sizes = _divide(pool, ordered, tables)
    return _with_left_over(pool, ordered, sizes)


def _with_left_over(pool: Pool, jobs: Sequence[PoolJob], sizes: Mapping[str, int]) -> dict[str, int]:
    """These sizes, and for mute jobs what the others leave, as long as none of these loses its place by it."""
    found = dict(sizes)
    for job in jobs:
        if job.is_measured or not job.mute or job.rests or not found[job.name]:
            continue
        most = min(job.wants, found[job.name] + (pool.devices - _used(jobs, found)) // job.ranks)
        before = _sum(jobs, found, _packed(pool, jobs, found))
        for size in range(most, found[job.name], -1):
            more = found | {job.name: size}
            packed = _packed(pool, jobs, more)
            if not packed.missing and _sum(jobs, more, packed) <= before + _NOTHING:
                found = more
                break
    return found


def without_spares(pool: Pool, jobs: Sequence[PoolJob], devices: int) -> Pool:
    """The pool without so many devices, which spares have: of those that no member is on, after all minimums.

    So a run that takes its spares as members, as for a node that it was worth, keeps them.
    """
    least = _minimums(pool, _oldest_first(jobs))
    members = {job.name: max(job.holds, least[job.name]) for job in jobs}
    counts = range(1, min(devices, pool.devices) + 1)
    return pool.less(bisect_left(counts, True, key=lambda taken: not has_room(pool.less(taken), jobs, members)))


def with_wish(pool: Pool, jobs: Sequence[PoolJob], tables: Tables | None = None) -> Pool:
    """The pool with the nodes that its jobs are worth: one node more, the same, or fewer.

    Members without room are what an autoscaler of nodes adds a node for, and an empty node is what it removes. Nodes
    are judged as if all jobs were new. The sizes that they have would judge a wish by what it has changed, and sizes
    would go up and down where no autoscaler acts.
    """
    new = [replace(job, has=0, changed_seconds=math.inf, spread_at=0) for job in jobs]
    if not all(job.is_measured or job.mute for job in new):
        return pool
    tables = {} if tables is None else tables
    sizes = _divided_anew(pool, new, tables)
    if not all(sizes.values()):
        return pool
    speed, used = mean_speedup(pool, new, sizes)
    if not used:
        return pool
    measured = [job for job in new if job.is_measured]
    mute = _used(new, sizes) - used
    if speed > CROWDED:
        larger = Pool((*pool.shapes, (pool.widest, 1)))
        if speed * used >= IDLE * larger.devices:
            return larger  # even if it were idle
        return pool if mean_speedup(larger, new, _divided_anew(larger, new, tables))[0] < IDLE else larger
    if speed >= IDLE:
        return pool
    return _without(pool, pool.devices - mute - _worth_having(measured, sizes, speed * used, used))


def _divided_anew(pool: Pool, new: Sequence[PoolJob], tables: Tables) -> dict[str, int]:
    """The sizes of jobs that have none."""
    ordered = _oldest_first(new)
    return _with_left_over(pool, ordered, _divide(pool, ordered, tables))


def mean_speedup(pool: Pool, jobs: Sequence[PoolJob], sizes: Mapping[str, int]) -> tuple[float, int]:
    """The mean speedup per device over the devices of the jobs whose speed is known, and how many these are."""
    nodes = {job.name: count for job, count in zip(jobs, _packed(pool, jobs, sizes).nodes, strict=True)}
    measured = [job for job in jobs if job.is_measured and sizes[job.name]]
    used = _used(measured, sizes)
    speed = sum(_speed(job, sizes[job.name], apart=nodes[job.name] > 1) for job in measured)
    return (speed / used if used else 0.0), used


def first_steps(pool: Pool, jobs: Sequence[PoolJob], sizes: Mapping[str, int]) -> dict[str, int]:
    """Of these sizes those to change now: what becomes smaller, and what grows into room that nobody holds any more.

    A job without a size gets one at once: it waits for its room as any job waits that is created.
    """
    held = {job.name: _kept_free(job, sizes[job.name]) for job in jobs}
    now: dict[str, int] = {}
    ordered = _oldest_first(jobs)
    for job in ordered:
        if not job.has:
            now[job.name] = held[job.name] = max(sizes[job.name], job.minimum)
    for job in ordered:
        size = sizes[job.name]
        if not job.has or not size or size == job.has:
            continue
        if size <= held[job.name] or has_room(pool, jobs, held | {job.name: size}):
            now[job.name] = size
            held[job.name] = max(size, held[job.name])
    return now


def _kept_free(job: PoolJob, size: int) -> int:
    """How many members' room nobody else can have: not that of a job that waits in vain, but for what it holds."""
    return max(job.has, job.holds) if size or not job.waits else job.holds


def has_room(pool: Pool, jobs: Sequence[PoolJob], sizes: Mapping[str, int]) -> bool:
    """Whether all members of jobs of these sizes have room at once."""
    ranks = _only_ranks(jobs)
    if ranks:
        return _used(jobs, sizes) <= pool.usable(ranks)
    return not pack(pool, [(sizes[job.name], job.ranks) for job in jobs]).missing


def sizes_to_look_at(sizes: Sequence[int], *also: int) -> tuple[int, ...]:
    """Of these rising sizes those that a table of speedups needs: of large ones not each, but `also`, if it is one."""
    found: list[int] = []
    for size in sizes:
        if not found or size <= SMALL_SIZE or size >= found[-1] * TABLE_RATIO or size in also:
            found.append(size)
    if sizes and found[-1] != sizes[-1]:
        found.append(sizes[-1])
    return tuple(found)


def speedup_table(hints: ScalingHints, sizes: Sequence[int], ranks: int = 1) -> dict[int, Speedup]:
    """The speedups that a job's hints promise by size, for members of so many ranks; without the sizes at which they
    promise none."""
    together = speedups(hints, ((1, size * ranks) for size in sizes))
    apart = speedups(hints, ((min(size, 2), size * ranks) for size in sizes))
    pairs = zip(sizes, together, apart, strict=True)
    return {size: Speedup(near, far) for size, near, far in pairs if near > 0 and far > 0}


def _oldest_first(jobs: Iterable[PoolJob]) -> list[PoolJob]:
    return sorted(jobs, key=lambda job: (-job.age_seconds, job.name))


def _divide(pool: Pool, jobs: Sequence[PoolJob], tables: Tables) -> dict[str, int]:
    """One division by what the jobs have: theirs if no other is better."""
    least = _minimums(pool, jobs)
    fixed = _settled(pool, jobs, least)
    kept = _kept(pool, jobs, fixed)
    spare = pool.usable(_only_ranks(jobs) or 1) - _used(jobs, fixed)
    weighed = [job for job in jobs if spare > 0 and job.is_measured and not job.rests and fixed[job.name]]
    rows = [
        [row for row in tables.get(job.name) or tables.setdefault(job.name, _rows(job)) if row[1] <= spare]
        for job in weighed
    ]
    find = _one_by_one if math.prod(map(len, rows)) <= FEW_WAYS else _by_rounds
    best, lowest = kept, _sum(jobs, kept, _packed(pool, jobs, kept)) if kept else math.inf
    for sizes, packed in find(_Leftover(pool, jobs, weighed, rows, fixed, spare)):
        if (cost := _sum(jobs, sizes, packed)) < lowest - _NOTHING:
            best, lowest = sizes, cost
    if best is None:
        best = fixed if not _packed(pool, jobs, fixed).missing else least
    return best


def _minimums(pool: Pool, jobs: Sequence[PoolJob]) -> dict[str, int]:
    """The minimum of each job that has room for it, 0 for the others: whoever waits, waits before all younger ones."""
    order = sorted(jobs, key=lambda job: job.waits or not job.has)
    ranks = _only_ranks(jobs)

    def is_too_many(served: int) -> bool:
        return bool(pack(pool, [(job.minimum, job.ranks) for job in order[:served]]).missing)

    if ranks:
        served = bisect_right(list(accumulate(job.minimum * ranks for job in order)), pool.usable(ranks))
    else:
        served = bisect_left(range(1, len(order) + 1), True, key=is_too_many)
    names = {job.name for job in order[:served]}
    return {job.name: job.minimum if job.name in names else 0 for job in jobs}


def _settled(pool: Pool, jobs: Sequence[PoolJob], least: Mapping[str, int]) -> dict[str, int]:
    """The minimums, and the sizes that are not weighed: of jobs that rest, then of those of which nothing is known."""
    sizes = dict(least)
    spare = pool.devices - _used(jobs, sizes)
    fair = pool.devices // len(jobs) if jobs else 0
    for job in sorted(jobs, key=lambda job: not job.rests):
        wanted = job.has if job.rests else min(job.wants, fair // job.ranks) if job.mute else job.wants
        if (job.is_measured and not job.rests) or not least[job.name]:
            continue
        more = max(min(wanted - job.minimum, spare // job.ranks), 0)
        if job.is_measured:
            more = max((size for size in job.speedups if size <= job.minimum + more), default=job.minimum) - job.minimum
        sizes[job.name] += more
        spare -= more * job.ranks
    return sizes


def _kept(pool: Pool, jobs: Sequence[PoolJob], fixed: Mapping[str, int]) -> dict[str, int] | None:
    """The sizes that the jobs have, and a newcomer's minimum; None if they cannot all have these."""
    sizes = {job.name: job.has if job.is_measured and job.has and fixed[job.name] else fixed[job.name] for job in jobs}
    allowed = all(sizes[job.name] in (0, *job.speedups) for job in jobs if job.is_measured)
    return sizes if allowed and not _packed(pool, jobs, sizes).missing else None


_Row = tuple[int, int, float, float]
"""A size, its devices beyond those of the minimum, and 1 / speedup on one node and on several."""
_Way = tuple[dict[str, int], Packed]


def _rows(job: PoolJob) -> list[_Row]:
    """The sizes that the job may have, rising."""
    found: list[_Row] = []
    for size, speedup in sorted(job.speedups.items()):
        devices = size * job.ranks
        together, apart = _believed(speedup.together, devices), _believed(speedup.apart, devices)
        if size >= job.minimum:
            found.append((size, devices - job.minimum * job.ranks, 1 / together, 1 / apart))
    return found


@dataclass(frozen=True)
class _Leftover:
    """What is to be divided: the spare devices of the pool, beside the sizes that are fixed."""

    pool: Pool
    jobs: Sequence[PoolJob]
    weighed: Sequence[PoolJob]
    """Those of the jobs that may get more than their fixed size, a minimum."""
    rows: Sequence[Sequence[_Row]]
    """The sizes of each of these."""
    fixed: Mapping[str, int]
    spare: int

    def way(self, sizes: Iterable[int]) -> _Way:
        """The way in which the weighed jobs have these sizes."""
        named = {job.name: size for job, size in zip(self.weighed, sizes, strict=True)}
        all_sizes = {**self.fixed, **named}
        return all_sizes, _packed(self.pool, self.jobs, all_sizes)


def _one_by_one(left: _Leftover) -> Iterator[_Way]:
    """All ways to divide it: of two equal ones first the one in which an older job has more."""
    for some in product(*reversed(left.rows)):
        if sum(row[1] for row in some) <= left.spare:
            way = left.way(row[0] for row in reversed(some))
            if not way[1].missing:
                yield way


def _by_rounds(left: _Leftover) -> Iterator[_Way]:
    """Good ways to divide it: first as if jobs were on one node wherever they fit on one.

    If that is not so, by sizes that leave no gaps on nodes. Then a job that was on several nodes at a size counts so.
    """
    apart: set[tuple[str, int]] = set()
    spare = max(left.spare, 0)
    rows = left.rows
    for again in range(ROUNDS):
        options = [_options(left.pool, job, some, apart) for job, some in zip(left.weighed, rows, strict=True)]
        chosen = _divided([[one for one in some if one[1] <= spare] for some in options], spare)
        sizes, packed = left.way(size for size, _, _ in chosen)
        if packed.missing:
            spare = max(spare - packed.missing, 0)
            continue
        yield sizes, packed
        nodes = {job.name: count for job, count in zip(left.jobs, packed.nodes, strict=True)}
        wider = {(job.name, sizes[job.name]) for job in left.weighed if nodes[job.name] > 1}
        if wider <= apart:
            return
        rows = left.rows if again else [_even(left.pool, *one) for one in zip(left.weighed, left.rows, strict=True)]
        apart |= wider if again else set()


def _even(pool: Pool, job: PoolJob, rows: Sequence[_Row]) -> list[_Row]:
    """The job's sizes of which several fill a node, or that fill several; its minimum and the one that it has, too."""
    widest = pool.widest
    return [
        row
        for row in rows
        if row[0] in (job.minimum, job.has) or not widest % (row[0] * job.ranks) or not row[0] * job.ranks % widest
    ]


_Option = tuple[int, int, float]
"""A size that a job may have, its devices beyond those of the minimum, and 1 / speedup by the job's weight, a change to
it included."""


def _options(pool: Pool, job: PoolJob, rows: Sequence[_Row], apart: set[tuple[str, int]]) -> list[_Option]:
    """The sizes that the job may have, rising; those that cost no less than a smaller one are left out."""
    found: list[_Option] = []
    widest, lateness, has = pool.widest // job.ranks, _lateness(job), job.has
    far = {job.spread_at, *(size for name, size in apart if name == job.name)}
    lowest = math.inf
    for size, more, together, spread in rows:
        cost = job.weight * (spread if size > widest or size in far else together)
        if size != has:
            cost *= lateness
        if cost < lowest:
            found.append((size, more, cost))
            lowest = cost - _NOTHING
    return found


def _divided(options: Sequence[Sequence[_Option]], spare: int) -> list[_Option]:
    """An option of each job.

    Where it would take too long to find the best way for all devices, it is found for some, and the others are given
    step by step; if that is no better than to give all of them step by step, these are the answer.
    """
    work = sum(map(len, options))
    exact = min(spare, EXACT_STEPS // work - 1) if work else 0
    ways = [_step_by_step(options, [0] * len(options), spare)] if exact < spare or spare == 0 else []
    if exact > 0:
        ways.append(_step_by_step(options, _best(options, exact), spare))
    chosen = [[some[index] for some, index in zip(options, way, strict=True)] for way in ways]
    return min(chosen, key=lambda way: sum(cost for _, _, cost in way))


def _best(options: Sequence[Sequence[_Option]], spare: int) -> list[int]:
    """The options, one of each job, whose costs have the least sum and that take no more than the spare devices.

    `least[n]` is the least sum of the jobs so far with n spare devices. Of equal ways the one with fewer devices.
    """
    least = [0.0] * (spare + 1)
    choices: list[list[int]] = []
    for some in options:
        sums = [cost + some[0][2] for cost in least]
        chosen = [0] * (spare + 1)
        for index, (_, more, cost) in enumerate(some[1:], 1):
            for devices, before in enumerate(least[: max(spare + 1 - more, 0)], more):
                if before + cost < sums[devices] - _NOTHING:
                    sums[devices], chosen[devices] = before + cost, index
        least = sums
        choices.append(chosen)
    found: list[int] = []
    for some, chosen in zip(reversed(options), reversed(choices), strict=True):
        found.append(chosen[spare])
        spare -= some[chosen[spare]][1]
    return found[::-1]


def _step_by_step(options: Sequence[Sequence[_Option]], begin: Sequence[int], spare: int) -> list[int]:
    """From these options on, give devices to the job whose cost falls most per device, until no step fits."""
    at = list(begin)
    spare -= sum(some[index][1] for some, index in zip(options, at, strict=True))
    steps: list[tuple[float, int, int]] = []

    def look(job: int) -> None:
        if step := _steepest(options[job], at[job], spare):
            heapq.heappush(steps, (step[0], job, step[1]))

    for job in range(len(options)):
        look(job)
    while steps:
        _, job, index = heapq.heappop(steps)
        more = options[job][index][1] - options[job][at[job]][1]
        if more <= spare:
            at[job] = index
            spare -= more
        look(job)
    return at


def _steepest(options: Sequence[_Option], at: int, spare: int) -> tuple[float, int] | None:
    """The step to a larger size that fits whose cost falls most per device: how steeply, and the option's index."""
    best: tuple[float, int] | None = None
    if at + 1 == len(options):
        return best
    (_, has, here), lowest = options[at], options[-1][2]
    for index in range(at + 1, len(options)):
        _, devices, cost = options[index]
        more = devices - has
        if more > spare or (best is not None and (lowest - here) / more >= best[0]):
            break  # nor can a larger one be as steep
        slope = (cost - here) / more
        if best is None or slope < best[0]:
            best = slope, index
    return best


def _packed(pool: Pool, jobs: Sequence[PoolJob], sizes: Mapping[str, int]) -> Packed:
    """The jobs on nodes in the order that costs least, of those that are tried."""
    asked = [(sizes[job.name], job.ranks) for job in jobs]
    by_size = pack(pool, asked)
    losses = [_loss(job, sizes[job.name]) for job in jobs]
    if not any(nodes > 1 and loss > _NOTHING for nodes, loss in zip(by_size.nodes, losses, strict=True)):
        return by_size
    orders = permutations(range(len(jobs))) if len(jobs) <= FEW_JOBS else [losses]
    ways = [by_size, *(pack(pool, asked, order) for order in orders)]
    return min((way for way in ways if not way.missing), default=by_size, key=lambda way: _sum(jobs, sizes, way))


def _loss(job: PoolJob, size: int) -> float:
    """What it costs a job of this size to be on several nodes."""
    if not size or not job.is_measured:
        return 0.0
    return _cost(job, size, apart=True) - _cost(job, size, apart=False)


def _sum(jobs: Sequence[PoolJob], sizes: Mapping[str, int], packed: Packed) -> float:
    """The sum that is to be small, over the jobs whose speed is known."""
    return sum(
        _cost(job, sizes[job.name], apart=nodes > 1)
        for job, nodes in zip(jobs, packed.nodes, strict=True)
        if job.is_measured and sizes[job.name]
    )


def _cost(job: PoolJob, size: int, *, apart: bool) -> float:
    """1 / speedup at this size, by its weight, in which a change takes its time."""
    late = 1 if size == job.has else _lateness(job)
    return job.weight * late / _speed(job, size, apart=apart or size == job.spread_at)


def _lateness(job: PoolJob) -> float:
    """By how much a change makes the time longer that the work takes."""
    return 1 / max(1 - job.change_seconds / EARNED_SECONDS, _NOTHING) if job.has else 1.0


def _speed(job: PoolJob, size: int, *, apart: bool) -> float:
    """The speedup at this size."""
    both = job.speedups[size]
    return _believed(both.apart if apart else both.together, size * job.ranks)


def _fair_speed(job: PoolJob, devices: int, widest: int) -> float:
    """The speedup with no more than these devices, on one node if one has as many; 1 at least."""
    sizes = [size for size in job.speedups if job.minimum <= size and size * job.ranks <= devices]
    size = max(sizes, default=job.minimum)
    return max(_speed(job, size, apart=size * job.ranks > widest), 1.0) if job.is_measured else 1.0


def _believed(speedup: float, devices: int) -> float:
    """The speedup as far as it can be believed: no job is faster than by its devices."""
    return min(speedup, float(devices)) if speedup > _NOTHING else _NOTHING


def _used(jobs: Iterable[PoolJob], sizes: Mapping[str, int]) -> int:
    return sum(sizes[job.name] * job.ranks for job in jobs)


def _only_ranks(jobs: Sequence[PoolJob]) -> int:
    """The ranks of each member, if all jobs have the same; else 0."""
    ranks = {job.ranks for job in jobs}
    return ranks.pop() if len(ranks) == 1 else 0


def _worth_having(jobs: Sequence[PoolJob], sizes: Mapping[str, int], speed: float, used: int) -> int:
    """How many devices these jobs are worth: those that gain least by their last devices give them up."""
    options = [[size for size in sorted(job.speedups) if job.minimum <= size <= sizes[job.name]] for job in jobs]
    losses: list[tuple[float, int]] = []

    def look(index: int) -> None:
        if len(options[index]) > 1:
            job, (lower, size) = jobs[index], options[index][-2:]
            loss = _speed(job, size, apart=False) - _speed(job, lower, apart=False)
            heapq.heappush(losses, (loss / ((size - lower) * job.ranks), index))

    for index in range(len(jobs)):
        look(index)
    while losses and speed < IDLE * used:
        loss, index = heapq.heappop(losses)
        fewer = (options[index][-1] - options[index][-2]) * jobs[index].ranks
        speed, used = speed - loss * fewer, used - fewer
        options[index].pop()
        look(index)
    return used


def _without(pool: Pool, devices: int) -> Pool:
    """The pool without so many devices at most: the smallest nodes go first."""
    left: list[tuple[int, int]] = []
    for size, nodes in sorted(pool.shapes):
        fewer = min(nodes, devices // size) if size else 0
        devices -= fewer * size
        left.append((size, nodes - fewer))
    return Pool(tuple(left))
