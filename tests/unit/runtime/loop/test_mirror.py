"""A small ring of ranks that mirror their parts, and one that dies at any moment: every order of what can happen.

Each rank's copy, its way to the buddy and its training go on beside each other. A copy that is written or received is
torn until it is whole. A rank may hear what the others say while another one has died behind its own word, and a
snapshot that is on its way may still arrive.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

import pytest

from perdure.loop import mirror
from perdure.loop.mirror import MirrorState, MirrorWord

TORN = -1
NONE = -2


class Where(Enum):
    HAND_OUT = "requests its next batch"
    TRAINS = "trains"
    AGREES = "has said its word, and has not heard the others"


class Job(Enum):
    NONE = "nothing is under way"
    COPIES = "copies"
    SENDS = "is being sent"
    DELIVERED = "is at the buddy"
    FAILED = "cannot be sent"


@dataclass(frozen=True)
class Rank:
    state: MirrorState
    counted: int = 0
    where: Where = Where.HAND_OUT
    job: Job = Job.NONE
    slot: int = 0
    """Where the snapshot under way goes."""
    step: int = 0
    """Of which step it is."""
    own: tuple[int, int] = (NONE, NONE)
    """The step of the snapshot in each of its own slots."""
    kept: tuple[int, int] = (NONE, NONE)
    """The same of the rank before it."""
    words: tuple[MirrorWord, ...] = ()
    """What it has said, in order."""
    heard: int = 0
    dead: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash(tuple(vars(self).values())))

    def __hash__(self) -> int:
        return int(vars(self)["_hash"])


World = tuple[Rank, ...]


@dataclass(frozen=True)
class Rules:
    """The product's, unless a test replaces one."""

    is_due: Callable[[MirrorState, int], bool] = mirror.is_due
    must_agree: Callable[[MirrorState, int], bool] = mirror.must_agree
    agreed: Callable[[MirrorState, Sequence[MirrorWord]], MirrorState] = mirror.agreed
    slot: Callable[[MirrorState], int] = field(default=lambda state: state.slot)
    meets: bool = True
    """Whether the others' words count, and not only a rank's own."""
    waits: bool = True
    """Whether a rank waits for its snapshot's delivery before it says its word."""


def with_(slots: tuple[int, int], slot: int, what: int) -> tuple[int, int]:
    return (what, slots[1]) if slot == 0 else (slots[0], what)


def set_(world: World, rank: int, one: Rank) -> World:
    return (*world[:rank], one, *world[rank + 1 :])


def moves(world: World, steps: int, rules: Rules) -> Iterator[World]:
    for rank, one in enumerate(world):
        yield from on_its_way(world, rank, one)
        if not one.dead:
            yield from trains(world, rank, one, steps, rules)
    if not any(one.dead for one in world):
        yield set_(world, 0, replace(world[0], dead=True))


def on_its_way(world: World, rank: int, one: Rank) -> Iterator[World]:
    """The copy and its way to the buddy; what is on its way may arrive behind its sender's death."""
    buddy = (rank + 1) % len(world)
    other = world[buddy]
    if one.job is Job.COPIES and not one.dead:
        sends = set_(world, rank, replace(one, job=Job.SENDS, own=with_(one.own, one.slot, one.step)))
        yield set_(sends, buddy, replace(other, kept=with_(other.kept, one.slot, TORN)))
    elif one.job is Job.SENDS:
        if other.dead:
            yield set_(world, rank, replace(one, job=Job.FAILED))
        else:
            arrived = set_(world, rank, replace(one, job=Job.DELIVERED))
            yield set_(arrived, buddy, replace(other, kept=with_(other.kept, one.slot, one.step)))


def trains(world: World, rank: int, one: Rank, steps: int, rules: Rules) -> Iterator[World]:
    others = [other for other in world if other is not one]
    match one.where:
        case Where.HAND_OUT if one.counted < steps:
            after = replace(one, where=Where.TRAINS)
            if rules.is_due(one.state, one.counted):
                slot = rules.slot(one.state)
                state = mirror.taken(one.state, one.counted)
                after = replace(after, state=state, job=Job.COPIES, slot=slot, step=one.counted)
                after = replace(after, own=with_(one.own, slot, TORN))
            yield set_(world, rank, after)
        case Where.TRAINS if one.job is not Job.COPIES and all(in_step(other, one) for other in others):
            if not rules.must_agree(one.state, one.counted + 1):
                yield set_(world, rank, replace(one, where=Where.HAND_OUT, counted=one.counted + 1))
            elif not rules.waits or one.job in (Job.DELIVERED, Job.FAILED):
                word = MirrorWord(one.state.whole, one.job is Job.DELIVERED)
                yield set_(world, rank, replace(one, where=Where.AGREES, words=(*one.words, word)))
        case Where.AGREES if not rules.meets or all(len(other.words) > one.heard for other in world):
            words = [other.words[one.heard] for other in (world if rules.meets else [one])]
            after = replace(one, state=rules.agreed(one.state, words), heard=one.heard + 1, job=Job.NONE)
            yield set_(world, rank, replace(after, where=Where.HAND_OUT, counted=one.counted + 1))


def in_step(other: Rank, one: Rank) -> bool:
    """Whether the other one has given what this step needs: its gradient."""
    return (other.counted, other.where is not Where.HAND_OUT) >= (one.counted, True)


def lost_steps(world: World) -> int:
    """The finished steps that the next run does without: all parts of one step have to be in living pods. The run began
    at step 0, from a commit."""
    found = []
    for rank, one in enumerate(world):
        buddy = world[(rank + 1) % len(world)]
        slots = [*(() if one.dead else one.own), *(() if buddy.dead else buddy.kept)]
        found.append({step for step in slots if step >= 0} | {0})
    return max(one.counted for one in world) - max(set.intersection(*found))


def worst(ranks: int, steps: int, every: int = 1, rules: Rules = Rules()) -> tuple[int, bool]:
    """The most steps that a death costs, up to one too many, and whether ranks come to their end without a death."""
    first: World = (Rank(MirrorState(every)),) * ranks
    known, left, most, done = {first}, deque([first]), 0, False
    while left and most < 2 * every:
        world = left.popleft()
        if any(one.dead for one in world):
            most = max(most, lost_steps(world))
        done = done or all(one.counted == steps for one in world)
        for after in moves(world, steps, rules):
            if after not in known:
                known.add(after)
                left.append(after)
    return most, done


@pytest.mark.parametrize(("ranks", "steps", "every"), [(2, 4, 1), (3, 4, 1), (4, 3, 1), (2, 8, 2), (3, 6, 2)])
def test_a_death_at_any_moment_costs_less_than_two_snapshots(ranks: int, steps: int, every: int) -> None:
    assert worst(ranks, steps, every) == (2 * every - 1, True)


WRONG = {
    "one slot": Rules(slot=lambda _: 0),
    "a rank's own word counts": Rules(meets=False),
    "no word counts": Rules(
        waits=False, agreed=lambda state, _: replace(state, whole=state.whole + 1, under_way=False)
    ),
    "a failed snapshot is taken again at once": Rules(
        agreed=lambda state, words: replace(mirror.agreed(state, words), taken_at=state.taken_at)
    ),
    "they agree once the next snapshot is due": Rules(
        must_agree=lambda state, step: mirror.must_agree(state, step - 1)
    ),
}


@pytest.mark.parametrize("rules", WRONG.values(), ids=WRONG)
def test_without_any_of_these_rules_it_may_cost_more(rules: Rules) -> None:
    most, _ = worst(3, 3, rules=rules)
    assert most > 1


def test_a_new_member_learns_which_slot_the_others_write_next() -> None:
    old, new = MirrorState(1, whole=3), MirrorState(1)
    known = mirror.agreed(mirror.renewed(old), [MirrorWord(3, delivered=False), MirrorWord(0, delivered=False)])
    assert (known.whole, known.slot) == (3, old.slot)
    assert mirror.is_due(mirror.renewed(new), 7)


def test_a_snapshot_that_did_not_arrive_everywhere_is_taken_again_in_the_same_slot() -> None:
    state = mirror.taken(MirrorState(2, whole=4), 10)
    assert mirror.must_agree(state, 12)
    after = mirror.agreed(state, [MirrorWord(4, delivered=True), MirrorWord(4, delivered=False)])
    assert (after.whole, after.slot) == (4, MirrorState(2, whole=4).slot)
    assert [step for step in range(11, 16) if mirror.is_due(after, step)] == [14, 15], "who has failed may be dead"


def test_what_fails_again_and_again_is_tried_less_and_less() -> None:
    state, tried = MirrorState(1), list[int]()
    for step in range(100):
        if mirror.must_agree(state, step):
            state = mirror.agreed(state, [MirrorWord(0, delivered=False)] * 2)
        if mirror.is_due(state, step):
            tried.append(step)
            state = mirror.taken(state, step)
    assert tried == [0, 2, 5, 10, 19, 36, 69]


def test_a_death_is_bounded_from_a_whole_snapshot_on_until_one_fails_or_ranks_change() -> None:
    def snapshot(state: MirrorState, *, arrives: bool) -> MirrorState:
        return mirror.agreed(mirror.taken(state, 0), [MirrorWord(state.whole, delivered=arrives)] * 2)

    whole = snapshot(MirrorState(3), arrives=True)
    assert not MirrorState(3).bounds
    assert (whole.bounds, whole.most_lost) == (True, 5)
    assert mirror.taken(whole, 3).bounds, "the last one is whole while the next one is on its way"
    assert not snapshot(whole, arrives=False).bounds
    assert not mirror.renewed(whole).bounds
    assert snapshot(mirror.renewed(whole), arrives=True).bounds
