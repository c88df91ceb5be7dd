"""A simulated training changes its membership between two batches, as the real machines and the log have it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from perdure.live.protocol.parties import Attempt, attempt_of
from perdure.live.protocol.state import STANDING
from perdure.wire import ExitKind, Handover, HandoverWord, Leave, Outcome, Train
from tests.simulation.checks.handovers import BACK, UNDECIDED
from tests.simulation.driving import Driver, drivers
from tests.simulation.evidence import figures, verdict
from tests.simulation.interface import Behaviour
from tests.simulation.pods import UID, Host, Pods, in_virtual_time

SECONDS = 60
LIMIT = 30


def live(**behaviour: object) -> Behaviour:
    """A job that can."""
    return Behaviour(**{"live": True, "goal": 60, "save_seconds": 0.5} | behaviour)  # type: ignore[arg-type]


def sound(pods: Pods, **facts: object) -> None:
    """Nothing is wrong with the log, compared with the training."""
    assert verdict(pods.log, pods.witness, goal=pods.behaviour.goal, **facts) == []  # type: ignore[arg-type]


def move(pods: Pods, old: list[Host], leavers: list[int], joins: list[int], *, run: int = 1, next_run: int = 2) -> Move:
    """The operator's assignments: the pods of the older run by rank, the leavers, and which ranks are new."""
    attempt = Attempt(run, next_run, len(old), tuple(joins), tuple(leavers))
    block = Handover(
        run, len(old), attempt.joins, attempt.leavers, f"{old[attempt.decider].ip}:{29600 + next_run}", LIMIT, "token"
    )
    newcomers = pods.start(len(joins))
    return Move(old, newcomers, attempt_of(block, next_run), block)


class Move:
    """One move, before any member is assigned."""

    def __init__(self, old: list[Host], newcomers: list[Host], attempt: Attempt, block: Handover) -> None:
        self.old, self.newcomers, self.attempt, self.block = old, newcomers, attempt, block
        everybody = [*old, *newcomers]
        self.members = [everybody[attempt.of_new(rank).number] for rank in range(attempt.new_world)]
        self.leavers = [old[rank] for rank in attempt.leavers]

    def tell(self) -> None:
        """All parties at once."""
        attempt = self.attempt
        for rank, host in enumerate(self.members):
            master = f"{self.members[0].ip}:{29500 + attempt.next}"
            plan = {"cause": "node leaves", "seconds": SECONDS, "wait": SECONDS + 15, "handover": self.block}
            host.assign(Train(attempt.next, rank, attempt.new_world, master, **plan))  # type: ignore[arg-type]
        for host in self.leavers:
            host.assign(Leave(attempt.next, "node leaves", SECONDS, handover=self.block))


SHAPES = {
    "rank 1 of 2 leaves": (2, [1], [1]),
    "rank 0 of 2 leaves": (2, [0], [0]),
    "both leave": (2, [0, 1], [0, 1]),
    "one of one": (1, [0], [0]),
    "2 to 3": (2, [], [1]),
    "3 to 2": (3, [1], []),
    "3 to 2, rank 0 leaves": (3, [0], []),
    "4 to 4, two replaced": (4, [0, 2], [0, 2]),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_no_rank_stops_and_no_step_is_lost(shape: str) -> None:
    pods, (world, leavers, joins) = Pods(live()), SHAPES[shape]

    async def story() -> tuple[list[Outcome], list[Outcome]]:
        old = pods.start(world)
        pods.train(1, old)
        await pods.reaches(7)
        planned = move(pods, old, leavers, joins)
        planned.tell()
        left = [await host.outcome() for host in planned.leavers]
        return left, [await host.outcome() for host in planned.members]

    left, members = in_virtual_time(story)
    assert {each.outcome for each in left} <= {ExitKind.HANDED_OVER}
    assert {each.outcome for each in members} == {ExitKind.COMPLETED}
    assert {(record.run, record.word) for each in (*left, *members) for record in each.handovers} == {
        (2, HandoverWord.GO)
    }
    sound(pods, done=True)
    opened = pods.log.lines[1].body
    assert (opened["kind"], opened["takesOver"], opened["run"]) == ("Opened", 1, 2)
    assert figures(pods.log, pods.witness).lost == 0
    assert len(pods.witness.trained) == 60  # each step once


def test_moves_follow_one_another_and_commits_tell_whose_the_steps_were() -> None:
    pods = Pods(live(every_steps=1000))

    async def story() -> list[ExitKind]:
        old = pods.start(2)
        pods.train(1, old)
        await pods.reaches(7)
        first = move(pods, old, [1], [1])
        first.tell()
        await pods.hears("opened", run=2)
        await pods.hears("step", step=20)
        second = move(pods, first.members, [0], [0], run=2, next_run=3)
        second.tell()
        return [(await host.outcome()).outcome for host in (*first.leavers, *second.leavers, *second.members)]

    found = in_virtual_time(story)
    assert found == [ExitKind.HANDED_OVER, ExitKind.HANDED_OVER, ExitKind.COMPLETED, ExitKind.COMPLETED]
    assert pods.story() == ["Opened 1", f"Opened 2 @{pods.log.lines[1].step}", f"Opened 3 @{pods.log.lines[2].step}",
                            "Committed 3 @60!", "Completed 3 @60"]  # fmt: skip
    sound(pods, done=True)


def test_newcomers_to_a_script_that_cannot_begin_in_place_as_soon_as_the_older_run_has_saved() -> None:
    pods = Pods(live(live=False))

    async def story() -> list[ExitKind]:
        old = pods.start(2)
        pods.train(1, old)
        await pods.reaches(7)
        planned = move(pods, old, [0, 1], [0, 1])
        begun = asyncio.get_running_loop().time()
        planned.tell()
        await pods.hears("opened", run=2)
        assert asyncio.get_running_loop().time() - begun < 10.0
        return [(await host.outcome()).outcome for host in planned.members]

    assert in_virtual_time(story) == [ExitKind.COMPLETED, ExitKind.COMPLETED]
    sound(pods, announced=[(UID, 1)], done=True)


@pytest.mark.parametrize("shape", ["rank 1 of 2 leaves", "2 to 3"])
def test_newcomers_to_a_script_that_turns_out_to_be_unable_begin_in_place_however_long_its_steps_take(
    shape: str,
) -> None:
    pods, (world, leavers, joins) = Pods(live(balks=True, step_seconds=8.0)), SHAPES[shape]

    async def story() -> list[ExitKind]:
        old = pods.start(world)
        pods.train(1, old)
        await pods.reaches(7)
        planned = move(pods, old, leavers, joins)
        planned.tell()
        return [(await host.outcome()).outcome for host in planned.members]

    assert set(in_virtual_time(story)) == {ExitKind.COMPLETED}
    assert pods.witness.taken == []
    sound(pods, announced=[(UID, 1)], done=True)


POINTS = [
    *(("newcomer", phase) for phase in ("preparing", "moving", "running-on", "telling", "voted", "took-over")),
    *(("stayer", phase) for phase in ("preparing", "moving", "telling", "voted", "deciding", "took-over")),
    *(("leaver", phase) for phase in ("preparing", "moving", "telling", "voted", "ended")),
]
Harm = Callable[[Pods, Driver], Awaitable[None]]


async def killed(pods: Pods, driver: Driver) -> None:
    """SIGKILL, of the whole container."""
    pods.host(driver).kill()


async def frozen(_: Pods, driver: Driver) -> None:
    """SIGSTOP, and no SIGCONT for long."""
    driver.ground.freeze(45.0)


async def without_store(pods: Pods, _: Driver) -> None:
    """For longer than the limit."""
    pods.bucket.down = True
    await asyncio.sleep(35.0)
    pods.bucket.down = False


async def answers_lost(pods: Pods, _: Driver) -> None:
    pods.bucket.lost_answer_rate = 1.0
    await asyncio.sleep(20.0)
    pods.bucket.lost_answer_rate = 0.0


async def deleted(pods: Pods, driver: Driver) -> None:
    pods.host(driver).sigterm.set()


async def another_plan(pods: Pods, driver: Driver) -> None:
    """The operator wants all of them to leave."""
    for host in pods.hosts:
        host.assign(Leave(3, "suspended", SECONDS))


async def torn(_: Pods, driver: Driver) -> None:
    """A reduce is whole for all others and broken for this one: its link was reset when they had its part already."""
    driver.tear()


HARMS: list[Harm] = [killed, frozen, torn, without_store, answers_lost, deleted, another_plan]


def hurt(part: str, phase: str, harm: Harm) -> Pods:
    """A move of rank 1, whose party of this kind is hurt when it comes to this phase; in the end all members are
    recreated."""
    pods = Pods(live(), seed=len(part) * 31 + len(phase))

    async def story() -> None:
        old = pods.start(2)
        pods.train(1, old)
        await pods.reaches(7)
        move(pods, old, [1], [1]).tell()
        await pods.hears("party", part=part, phase=phase)
        for driver in list(drivers(pods.wires)):
            if (driver.party.part, driver.phase) == (part, phase):
                await harm(pods, driver)
                break
        await asyncio.sleep(120.0)
        assert [each.phase for each in drivers(pods.wires) if each.phase in STANDING] == []
        again = pods.start(2)
        for host in pods.hosts[:-2]:
            host.assign(Leave(9, "the rest", 60, lost=(1, 2, 3)))
        pods.train(9, again, lost=(1, 2, 3), seconds=60, wait=75)
        await again[0].outcome()

    in_virtual_time(story)
    return pods


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize(("part", "phase"), POINTS)
def test_whichever_party_is_hurt_the_log_stays_sound_and_every_party_knows_in_time(
    part: str, phase: str, harm: Harm
) -> None:
    pods = hurt(part, phase, harm)
    sound(pods, done=True)
    assert gone_back(pods) == []


@pytest.mark.parametrize("harm", [killed, deleted, torn])
@pytest.mark.parametrize(("part", "phase"), POINTS)
def test_no_single_death_costs_a_finished_step_wherever_in_a_hand_over_it_comes(
    part: str, phase: str, harm: Harm
) -> None:
    pods = hurt(part, phase, harm)
    assert figures(pods.log, pods.witness).lost == 0


def test_where_the_only_heir_dies_a_leaver_keeps_the_state_until_it_learns_that_the_newer_run_is_lost() -> None:
    pods = Pods(live(every_steps=1000))

    async def story() -> Outcome:
        old = pods.start(2)
        pods.train(1, old)
        await pods.reaches(7)
        move(pods, old, [1], []).tell()
        await pods.hears("party", part="stayer", phase="deciding")
        await asyncio.sleep(0.004)  # its PUT is on the way, and no answer is back
        old[0].kill()
        await asyncio.sleep(20.0)
        assert not pods.log.commits()
        old[1].assign(Leave(3, "run 2 is lost", SECONDS, lost=(2,)))
        return await old[1].outcome()

    left = in_virtual_time(story)
    assert (left.outcome, left.commit and left.commit.step) == (ExitKind.PEER_LOST, left.step)
    assert pods.story() == ["Opened 1", f"Opened 2 @{left.step}", f"Committed 2 @{left.step}!"]
    assert figures(pods.log, pods.witness).lost == 0


def gone_back(pods: Pods) -> list[str]:
    """H2: all voted parties read the same word, so none goes back where the newer run has begun."""
    if not any(line.body.get("takesOver") for line in pods.log.lines):
        return []
    voted, found = set[int](), list[str]()
    for what, facts in pods.facts:
        if what == "party" and facts["phase"] in UNDECIDED:
            voted.add(facts["number"])
        elif what == "party" and facts["phase"] in BACK and facts["number"] in voted:
            found.append(f"party {facts['number']} is {facts['phase']}")
        elif what == "trainer-ended" and facts["how"] == ExitKind.HANDOVER_FAILED.value:
            found.append(f"rank {facts['rank']} of run {facts['run']} takes it for failed")
    return found


def test_attempts_end_in_every_way_there_is() -> None:
    words = ("refuses", "takesOver", "aborted")
    lines = [line for part, phase in POINTS for harm in HARMS for line in hurt(part, phase, harm).log.lines]
    assert {word for line in lines for word in words if line.body.get(word)} == set(words)
