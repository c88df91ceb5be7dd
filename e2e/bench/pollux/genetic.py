"""Pollux: the search of placements, a genetic one with two aims (NSGA-II). Its world is two tables and a base state.

A state says how many ranks of each job are on each node. The aims are the power mean of the jobs' speedups, for which a
move is charged, and the devices' mean utility. The best of the first is taken; the second keeps the search diverse.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from e2e.bench.pollux.world import DEVICES_OF_NODE, NODES

States = NDArray[np.int8]
"""By state, job and node."""
Numbers = NDArray[np.float64]
POPULATION: Final = 100
GENERATIONS: Final = 100
PATIENCE: Final = 30
"""A search ends early after so many generations without a larger mean."""
AGAIN: Final = 3
"""So often offspring are made in a generation, for those that were known already."""
CROSSED: Final = 0.9


@dataclass(frozen=True)
class Problem:
    """What a search looks at. The order of jobs says who keeps a device where two have it."""

    speedups: Numbers
    """By job, one node or several (0 or 1), and ranks."""
    most_ranks: NDArray[np.int64]
    """By job."""
    kept: Numbers
    """By job: the share of its speedup that counts in a state that moves it."""
    base: States
    """By job and node: the devices that each has now."""
    power: float = -1.0


class Search:
    """The states of the last search begin the next."""

    def __init__(self, seed: int, generations: int = GENERATIONS) -> None:
        self._random = np.random.Generator(np.random.SFC64(seed))
        self._generations = generations

    def best(self, problem: Problem, begin: States) -> tuple[States, States]:
        """The state of the largest mean, and the front of all that are best in some way."""
        states, known = _distinct(self._repaired(problem, begin.copy()), set())
        values = evaluated(problem, states)
        ranks, crowding = ranked(values)
        largest, since = values[:, 0].max(), 0
        for _ in range(self._generations):
            made = self._offspring(problem, states, ranks, crowding, known)
            states = np.concatenate([states, made])
            values = np.concatenate([values, evaluated(problem, made)])
            ranks, crowding = ranked(values)
            kept = np.lexsort((self._random.random(len(states)), -crowding, ranks))[:POPULATION]
            states, values, ranks, crowding = states[kept], values[kept], ranks[kept], crowding[kept]
            known = {state.tobytes() for state in states}
            now = values[:, 0].max()
            largest, since = max(now, largest), 0 if now > largest else since + 1
            if since >= PATIENCE:
                break
        front = states[ranks == 0]
        return front[np.argmax(values[ranks == 0, 0])], front

    def _offspring(
        self, problem: Problem, states: States, ranks: NDArray[np.int64], crowding: Numbers, known: set[bytes]
    ) -> States:
        made: list[States] = []
        for _ in range(AGAIN):
            lacks = POPULATION - sum(map(len, made))
            parents = states[self._chosen(ranks, crowding, 2 * -(-lacks // 2))]
            children = self._repaired(problem, self._mutated(problem, self._crossed(parents)))
            distinct, known = _distinct(children, known)
            made.append(distinct[:lacks])
            if len(distinct) >= lacks:
                break
        return np.concatenate(made)

    def _chosen(self, ranks: NDArray[np.int64], crowding: Numbers, count: int) -> NDArray[np.int64]:
        """Winners of tournaments of two: the lower front, then the less crowded."""
        turns = -(-2 * count // len(ranks))
        drawn = np.concatenate([self._random.permutation(len(ranks)) for _ in range(turns)])[: 2 * count]
        one, other = drawn.reshape(2, count)
        first = np.where(ranks[one] != ranks[other], ranks[one] < ranks[other], crowding[one] > crowding[other])
        tie = (ranks[one] == ranks[other]) & (crowding[one] == crowding[other])
        return np.where(np.where(tie, self._random.random(count) < 0.5, first), one, other)

    def _crossed(self, parents: States) -> States:
        """Two by two: the jobs before a point change places."""
        one, other = parents[0::2], parents[1::2]
        pairs, jobs = one.shape[:2]
        point = self._random.integers(jobs, size=(pairs, 1)) * (self._random.random((pairs, 1)) < CROSSED)
        swapped = (np.arange(jobs) < point)[:, :, None]
        return np.concatenate([np.where(swapped, other, one), np.where(swapped, one, other)])

    def _mutated(self, problem: Problem, states: States) -> States:
        """Jobs go back to where they are, lose ranks, and get ranks of nodes that have devices left."""
        count, jobs = states.shape[:2]
        back = np.nonzero(self._random.random((count, jobs), dtype=np.float32) < 0.1)
        states[back] = problem.base[back[1]]
        lose = np.nonzero(self._random.random((count, jobs), dtype=np.float32) < 0.1)
        states[lose] *= self._random.random((len(lose[0]), NODES), dtype=np.float32) >= 0.1
        free = states.sum(axis=1, dtype=np.int8) < DEVICES_OF_NODE
        held = states > 0
        by_all = np.float32(1.0 / jobs)
        by_holders = np.float32(1.0) / np.maximum(held.sum(axis=1, dtype=np.int8), 1)
        holder = (by_all + by_holders - by_all * by_holders) * free
        likely = np.where(held, holder[:, None], (by_all * free)[:, None])
        drawn = np.nonzero(self._random.random(states.shape, dtype=np.float32) < likely)
        now = states[drawn]
        states[drawn] = now + self._random.random(len(now)) * (DEVICES_OF_NODE + 1 - now)
        return states

    def _repaired(self, problem: Problem, states: States) -> States:
        """One job over several nodes at most on a node, no job above its most ranks, no node above its devices."""
        held = states > 0
        spread = held & (total(held) > 1)[:, :, None]
        wrong = np.nonzero((spread.sum(axis=1, dtype=np.int8) > 1).any(axis=1))[0]
        mended = states[wrong]
        mended[spread[wrong] & (np.cumsum(spread[wrong], axis=1, dtype=np.int8) > 1)] = 0
        states[wrong] = mended
        above = np.nonzero(total(states) > problem.most_ranks)
        rows = states[above]
        order = np.argsort(self._random.random(rows.shape, dtype=np.float32), axis=1)
        most = problem.most_ranks[above[1]][:, None]
        kept = np.minimum(np.cumsum(np.take_along_axis(rows, order, axis=1), axis=1), most)
        np.put_along_axis(rows, order, _differences(kept), axis=1)
        states[above] = rows
        wrong = np.nonzero((states.sum(axis=1, dtype=np.int16) > DEVICES_OF_NODE).any(axis=1))[0]
        states[wrong] = _differences(np.minimum(np.cumsum(states[wrong], axis=1, dtype=np.int16), DEVICES_OF_NODE))
        return states


def total(states: NDArray[np.int8] | NDArray[np.bool_]) -> NDArray[np.uint64]:
    """The sum over all nodes, at most 255: eight bytes at once."""
    words = np.ascontiguousarray(states).view(np.uint64).sum(axis=-1) * np.uint64(0x0101010101010101)
    found: NDArray[np.uint64] = words >> np.uint64(56)
    return found


def _differences(sums: NDArray[np.int64] | NDArray[np.int16]) -> States:
    """Along the second axis, of sums from 0 on."""
    found = sums.astype(np.int8)
    found[:, 1:] -= sums[:, :-1].astype(np.int8)
    return found


def evaluated(problem: Problem, states: States) -> Numbers:
    """Both aims of each state, larger is better."""
    ranks = total(states).astype(np.int64)
    several = (total(states > 0) > 1).astype(np.int64)
    speedups = problem.speedups[np.arange(states.shape[1]), several, ranks]
    active = np.count_nonzero(states.any(axis=1), axis=1) * DEVICES_OF_NODE
    utility = speedups.sum(axis=1) / np.maximum(active, 1)
    moved = total(states != problem.base) > 0
    scaled = speedups / DEVICES_OF_NODE * np.where(moved, problem.kept, 1.0)
    mean = np.mean((scaled + 1e-3) ** problem.power, axis=1) ** (1.0 / problem.power)
    return np.column_stack([mean, utility])


def ranked(values: Numbers) -> tuple[NDArray[np.int64], Numbers]:
    """The front of each state, 0 is that of those that none surpasses, and how far its neighbours in it are.

    Fronts beyond a population are one.
    """
    one, other = np.ascontiguousarray(values.T)
    at_least = (one[:, None] >= one) & (other[:, None] >= other)
    surpasses = (at_least & ~at_least.T).view(np.int8)
    ranks = np.full(len(values), -1, dtype=np.int64)
    crowding = np.zeros(len(values))
    surpassed = surpasses.sum(axis=0, dtype=np.int16)
    front, done = 0, 0
    while done < min(len(values), POPULATION):
        members = np.nonzero(surpassed == 0)[0]
        ranks[members] = front
        crowding[members] = _crowding(values[members])
        surpassed[members] = -1
        surpassed -= surpasses[members].sum(axis=0, dtype=np.int16)
        front, done = front + 1, done + len(members)
    ranks[ranks < 0] = front
    return ranks, crowding


def _crowding(values: Numbers) -> Numbers:
    if len(values) <= 2:
        return np.full(len(values), np.inf)
    found = np.zeros(len(values))
    for aim in values.T:
        order = np.argsort(aim, kind="stable")
        ordered = aim[order]
        span = ordered[-1] - ordered[0]
        if span == 0:
            continue
        distance = np.full(len(values), np.inf)
        distance[1:-1] = (ordered[2:] - ordered[:-2]) / span
        found[order] += distance / values.shape[1]
    return found


def _distinct(states: States, known: set[bytes]) -> tuple[States, set[bytes]]:
    seen, new = set(known), []
    for place, state in enumerate(states):
        key = state.tobytes()
        if key not in seen:
            seen.add(key)
            new.append(place)
    return states[new], seen


def adapted(front: States, before: Sequence[str], now: Sequence[str]) -> States:
    """The states of an earlier search for the jobs of now: who is new has nothing in them."""
    places = {name: place for place, name in enumerate(before)}
    found = np.zeros((len(front), len(now), NODES), dtype=np.int8)
    for place, name in enumerate(now):
        if name in places:
            found[:, place] = front[:, places[name]]
    return found
