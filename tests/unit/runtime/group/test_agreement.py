"""The agreement in all small worlds: whenever any rank is asked, all ranks leave at one call, or all name the mistake.

The ranks are threads that play one world after another, and their reduce is exact; so are their actions, whichever of
them is faster: each reads the k-th result where its own calls say so, and waits for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product

import pytest

from perdure.errors import PeerLost, UserError
from perdure.group.agreement import Agreement, CheckpointCall, Votes
from perdure.group.pace import MOST_CALLS, Pace

STEP, POLL, SAVE, END, *_ = CheckpointCall
SECONDS = 60.0
INTERVAL = 0.05
FAST, USUAL, SLOW = 0.002, 0.02, 1.0


class Meeting:
    """One world's reduces, by number; the result is there when all ranks have sent theirs."""

    def __init__(self, world: int) -> None:
        self._world = world
        self._sent: list[list[Sequence[int]]] = []
        self._changed = threading.Condition()

    def of(self) -> OneRank:
        """A rank's side."""
        return OneRank(self)

    def send(self, number: int, vector: Sequence[int]) -> None:
        with self._changed:
            while len(self._sent) <= number:
                self._sent.append([])
            self._sent[number].append(list(vector))
            self._changed.notify_all()

    def result(self, number: int) -> list[int]:
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._sent[number]) == self._world, SECONDS):
                raise PeerLost(f"reduce {number} was not met")
            return [max(numbers) for numbers in zip(*self._sent[number], strict=True)]


class OneRank:
    """See perdure.group.agreement.Maximum."""

    def __init__(self, meeting: Meeting) -> None:
        self._meeting = meeting
        self.sent = 0

    def start(self, vector: Sequence[int]) -> Callable[[], list[int]]:
        number, self.sent = self.sent, self.sent + 1
        self._meeting.send(number, vector)
        return lambda: self._meeting.result(number)


@dataclass(frozen=True)
class World:
    """Each rank's calls, the duration of each call, and which rank is asked before which call."""

    calls: tuple[tuple[CheckpointCall, ...], ...]
    """By rank."""
    seconds: tuple[tuple[float, ...], ...]
    """By rank, repeated from the last."""
    asked: tuple[int, int] | None = None
    """Rank and number of the call."""
    exhausted: tuple[int, int] | None = None
    collects: bool = False
    """Whether each call is followed by a collect, as at a hand-out."""


@dataclass
class Seen:
    """What became of one rank."""

    left: tuple[int, int] | None = None
    """Call and step at which it was asked to leave, or None: it came to its end."""
    error: str = ""
    exhausted: bool = False
    sent: int = 0
    sent_when_asked: int | None = None
    seconds_when_asked: float = 0.0
    seconds: float = 0.0
    longest: float = 0.0


def play(world: World, rank: int, meeting: Meeting) -> Seen:
    """One rank's part of a world."""
    seen, clock = Seen(), Clock(world.seconds[rank])
    side = meeting.of()
    agreement = Agreement(side, interval=INTERVAL, now=clock)
    step, asked = 0, False
    for number, kind in enumerate(world.calls[rank]):
        step += kind is STEP
        clock.go_on(number)
        if world.asked == (rank, number):
            asked, seen.sent_when_asked, seen.seconds_when_asked = True, side.sent, clock()
        said = Votes(exit=asked and kind is not END, exhausted=world.exhausted == (rank, number))
        try:
            agreed = called(agreement, step, kind, said)
            if world.collects and not agreed.exit:
                agreed |= agreement.collect()
        except UserError as error:
            seen.error = str(error)
            break
        seen.exhausted |= agreed.exhausted
        if agreed.exit and kind is not END:
            seen.left = number, step
            break
    seen.sent, seen.seconds, seen.longest = side.sent, clock(), max(world.seconds[rank])
    return seen


def called(agreement: Agreement, step: int, kind: CheckpointCall, said: Votes) -> Votes:
    return agreement.at_once(step, kind, said) if kind in (SAVE, END) else agreement.check(step, kind, said)


class Clock:
    """Goes on by what each call takes."""

    def __init__(self, seconds: tuple[float, ...]) -> None:
        self._seconds = seconds
        self._now = 0.0

    def go_on(self, number: int) -> None:
        self._now += self._seconds[min(number, len(self._seconds) - 1)]

    def __call__(self) -> float:
        return self._now


def played(worlds: Sequence[World]) -> list[list[Seen]]:
    """Every world's ranks."""
    meetings = [Meeting(len(world.calls)) for world in worlds]
    seen: list[list[Seen]] = [[Seen() for _ in world.calls] for world in worlds]
    failed: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            for number, world in enumerate(worlds):
                if rank < len(world.calls):
                    seen[number][rank] = play(world, rank, meetings[number])
        except BaseException as error:  # noqa: BLE001 - for the test's own thread
            failed.append(error)

    ranks = [threading.Thread(target=run, args=(rank,)) for rank in range(max(len(world.calls) for world in worlds))]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    if failed:
        raise failed[0]
    return seen


PATTERNS: dict[str, tuple[tuple[float, ...], ...]] = {
    "fast": ((FAST,), (FAST,), (FAST,)),
    "usual": ((USUAL,), (USUAL,), (USUAL,)),
    "slow": ((SLOW,), (SLOW,), (SLOW,)),
    "clocks that differ": ((FAST,), (FAST * 4,), (FAST * 9,)),
    "one that does not see it": ((FAST,), (USUAL,), (FAST,)),
    "slower in the end": ((FAST,) * 15 + (SLOW,),) * 3,
}
LENGTH = 22
SCRIPTS: dict[str, tuple[CheckpointCall, ...]] = {
    "steps": (STEP,) * LENGTH,
    "a poll now and then": tuple(POLL if number % 7 == 3 else STEP for number in range(LENGTH)),
    "an evaluation": (STEP,) * 9 + (POLL,) * 7 + (STEP,) * 6,
    "a save after fast steps": (STEP,) * 13 + (SAVE,) + (STEP,) * 8,
    "alternating": (STEP, POLL) * (LENGTH // 2),
}


def worlds(sizes: Sequence[int] = (2, 3)) -> Iterator[tuple[str, World]]:
    for size, (pattern, seconds), (script, calls) in product(sizes, PATTERNS.items(), SCRIPTS.items()):
        asked = [None, *product(range(size), range(LENGTH))]
        for who, collects in product(asked, (False, True) if size == 2 else (False,)):
            name = f"{size} ranks, {script}, {pattern}, asked {who}, collects {collects}"
            yield name, World(((*calls, END),) * size, seconds[:size], who, collects=collects)


def test_whichever_rank_is_asked_at_any_time_all_leave_at_one_call_soon() -> None:
    names, all_worlds = zip(*worlds(), strict=True)
    for name, world, seen in zip(names, all_worlds, played(all_worlds), strict=True):
        assert {rank.error for rank in seen} == {""}, name
        assert len({rank.left for rank in seen}) == 1, name
        left = seen[0].left
        if world.asked is None:
            assert left is None, name
            continue
        rank, number = world.asked
        # A rank asked in the last calls finds the end before the others know: that is an end like any other.
        assert left or number > LENGTH - 2 - MOST_CALLS, name
        if left:
            assert number <= left[0] <= number + MOST_CALLS, name
            asked = seen[rank]
            assert asked.sent_when_asked is not None
            assert asked.sent - asked.sent_when_asked <= 3, f"{name}: more than two checks and the last one"


@pytest.mark.parametrize("step", [FAST, FAST * 5, USUAL, USUAL * 2, SLOW])
def test_a_request_is_agreed_within_a_tenth_of_a_second_and_a_step(step: float) -> None:
    asked = [World(((STEP,) * 60,) * 2, ((step,),) * 2, (rank, number)) for rank in (0, 1) for number in range(40)]
    for world, seen in zip(asked, played(asked), strict=True):
        assert world.asked
        one = seen[world.asked[0]]
        assert one.left
        assert one.seconds - one.seconds_when_asked <= 2 * INTERVAL + step + 1e-9, world


def test_short_steps_are_checked_now_and_then_and_long_ones_each() -> None:
    fast, usual, slow = (World(((STEP,) * 200,) * 2, ((seconds,),) * 2) for seconds in (FAST, USUAL, SLOW))
    sent = [seen[0].sent for seen in played([fast, usual, slow])]
    assert sent[0] <= 200 / MOST_CALLS + 5
    assert sent[1] <= 200 / 2 + 2
    assert sent[2] == 200


def test_steps_that_get_longer_are_checked_each_from_the_first_check_on() -> None:
    world = World(((STEP,) * 100,) * 2, ((FAST,) * 60 + (SLOW,),) * 2)
    before = World(((STEP,) * 60,) * 2, ((FAST,),) * 2)
    sent = [seen[0].sent for seen in played([world, before])]
    assert sent[0] - sent[1] >= 40 - MOST_CALLS - 1


def test_the_first_call_of_an_evaluation_is_a_check_whatever_the_steps_before_were() -> None:
    for before in range(20, 20 + MOST_CALLS):
        calls, seconds = (STEP,) * before + (POLL,) * 10, (FAST,) * before + (SLOW,)
        world = World((calls,) * 2, (seconds,) * 2, asked=(1, before))
        assert [rank.left for rank in played([world])[0]] == [(before + 1, before)] * 2


def test_the_end_of_an_epoch_does_not_restart_the_schedule() -> None:
    epoch = (STEP,) * 50 + (SAVE,)
    world = World((epoch * 8,) * 2, ((FAST,),) * 2)
    assert played([world])[0][0].sent <= 8 + 400 / MOST_CALLS + 5


def test_a_rank_whose_calls_are_long_decides_for_all() -> None:
    world = World(((STEP,) * 100,) * 3, ((FAST,), (FAST,), (SLOW,)))
    assert [rank.sent for rank in played([world])[0]] == [100] * 3


def test_one_call_too_many_of_any_kind_anywhere_is_named_on_all_ranks() -> None:
    names, wrong = [], []
    for size, seconds, kind, rank, where in product((2, 3), PATTERNS.values(), (STEP, POLL), (0, 1), range(LENGTH)):
        calls = [[*SCRIPTS["an evaluation"], END] for _ in range(size)]
        calls[rank].insert(where, kind)
        names.append(f"{size} ranks, {kind.name} inserted at {where} of rank {rank}, {seconds}")
        wrong.append(World(tuple(map(tuple, calls)), seconds[:size]))
    for name, seen in zip(names, played(wrong), strict=True):
        assert all("the ranks check unequally often" in rank.error for rank in seen), name


def test_two_mistakes_that_would_make_up_for_each_other_are_named_too() -> None:
    names, wrong = [], []
    for first, second, asked in product(range(0, LENGTH, 2), range(1, LENGTH, 2), (0, 5, 11)):
        calls = [[*SCRIPTS["steps"], END] for _ in range(2)]
        calls[0].insert(first, POLL)
        calls[1].insert(second, POLL)
        names.append(f"polls at {first} and {second}, asked {asked}")
        wrong.append(World(tuple(map(tuple, calls)), PATTERNS["fast"][:2], (0, asked)))
    for name, seen in zip(names, played(wrong), strict=True):
        left = {rank.left for rank in seen}
        assert all(rank.error for rank in seen) or (len(left) == 1 and None not in left), name


def test_what_is_said_once_between_two_checks_is_not_lost() -> None:
    said = [
        World(((*SCRIPTS["steps"], END),) * 2, PATTERNS["fast"][:2], exhausted=(rank, number))
        for rank, number in product((0, 1), range(LENGTH))
    ]
    for world, seen in zip(said, played(said), strict=True):
        assert all(rank.exhausted for rank in seen), world


def test_with_an_interval_of_nothing_every_call_is_a_check() -> None:
    pace = Pace(0.0, lambda: 1.0)
    for _ in range(20):
        assert pace.is_check(STEP)
        pace.agree(pace.checked())


def test_who_is_ready_for_what_is_asked_where_it_is_said_and_the_newest_word_counts() -> None:
    side, clock, asked = Meeting(1).of(), Clock((FAST,)), 0
    agreement = Agreement(side, interval=INTERVAL, now=clock)

    def ready() -> int:
        nonlocal asked
        asked += 1
        return asked if asked < 3 else 0

    said = []
    for number in range(60):
        clock.go_on(number)
        agreement.check(number + 1, STEP, Votes(), ready)
        assert asked == side.sent
        agreement.collect()
        said.append(agreement.attempt)
    assert said[:2] == [1, 2]
    assert said[-1] == 0
    assert asked < 12


@pytest.mark.parametrize("interval", [0.0, INTERVAL])
def test_a_save_of_which_ranks_hear_at_different_calls_is_agreed_on_once(interval: float) -> None:
    def made(hears: int, meeting: Meeting) -> list[int]:
        clock, known, found = Clock((USUAL,)), 0, []
        agreement = Agreement(meeting.of(), interval=interval, now=clock)
        for number in range(30):
            clock.go_on(number)
            asked, known = (7, 7) if number >= hears > -1 and known < 7 else (0, known)
            agreed = agreement.check(number + 1, STEP, Votes(save_number=asked))
            found += [number] if agreed.save_number else []
            known = max(known, agreed.save_number)
        return found

    with ThreadPoolExecutor(3) as ranks:
        for hears in product((-1, 0, 1, 2, 3, 5, 8, 13), repeat=3):
            seen = list(ranks.map(made, hears, [Meeting(3)] * 3))
            assert seen[0] == seen[1] == seen[2]
            assert len(seen[0]) == (max(hears) > -1), hears


def test_a_world_of_one_sends_nothing_and_nothing_lags() -> None:
    assert Agreement(None).check(1, STEP, Votes(exit=True)) == Votes(exit=True)
    assert Agreement(None).at_once(1, SAVE, Votes(exit=True)) == Votes(exit=True)
    assert Agreement(None).check(1, STEP, Votes(exit=True), lambda: 7) == Votes(exit=True, attempt=7)
    assert Agreement(None).collect() == Votes()


@pytest.mark.parametrize(
    ("ready", "agreed"),
    [((2, 2, 2), 2), ((2, 3, 3), 0), ((3, 2, 2), 0), ((2, 2, 3), 0), ((0, 2, 2), 0), ((2, 2, 0), 0), ((0, 0, 0), 0)],
)
def test_ranks_stop_for_an_attempt_only_where_all_are_ready_for_that_very_one(
    ready: tuple[int, ...], agreed: int
) -> None:
    """Else an attempt tried again is taken for the one before by a rank that has not heard of it yet."""

    def heard(run: int, meeting: Meeting) -> int:
        agreement = Agreement(meeting.of(), interval=0.0)
        agreement.check(1, STEP, Votes(), lambda: run)
        agreement.collect()
        return agreement.attempt

    with ThreadPoolExecutor(3) as ranks:
        assert list(ranks.map(heard, ready, [Meeting(3)] * 3)) == [agreed] * 3
