"""A simulated member is the real agent and the real log in virtual time: pods know its actions."""

import asyncio

import pytest

from perdure.wire import CommitRef, Env, ErrorName, ExitKind, Leave, Outcome, Standby, read_outcome
from tests.simulation.evidence import figures, verdict
from tests.simulation.interface import Behaviour, MemberExit
from tests.simulation.pods import ROOT, UID, Pods, in_virtual_time


def sound(pods: Pods, **facts: object) -> None:
    """Nothing is wrong with the log, compared with the training."""
    assert verdict(pods.log, pods.witness, goal=pods.behaviour.goal, **facts) == []  # type: ignore[arg-type]


def test_two_members_train_to_the_goal() -> None:
    pods = Pods(Behaviour(goal=60))

    async def story() -> list[ExitKind]:
        members = pods.start(2)
        pods.train(1, members)
        return [(await member.outcome()).outcome for member in members]

    assert in_virtual_time(story) == [ExitKind.COMPLETED, ExitKind.COMPLETED]
    assert pods.story()[-2:] == ["Committed 1 @60!", "Completed 1 @60"]
    sound(pods, done=True)
    assert figures(pods.log, pods.witness).lost == 0


def test_one_gets_sigterm_and_all_agree_save_and_leave() -> None:
    pods = Pods()

    async def story() -> list[ExitKind]:
        one, other = members = pods.start(2)
        pods.train(1, members)
        await pods.reaches(33)
        one.sigterm.set()
        first = await one.outcome()
        other.assign(Leave(2, "a peer leaves", 60))
        return [first.outcome, (await other.outcome()).outcome]

    assert in_virtual_time(story) == [ExitKind.CHECKPOINTED, ExitKind.CHECKPOINTED]
    assert pods.story()[-1] in ("Committed 1 @34!", "Committed 1 @35!", "Committed 1 @36!")
    sound(pods, announced=[(UID, 1)])


def test_a_run_asked_to_leave_at_any_moment_of_its_opening_leaves_no_open_log_behind() -> None:
    """Its entry may be on its way to the log: the next run would wait as if this one could still save."""
    stories = set[tuple[str, ...]]()
    for moment in range(120):
        pods = Pods()

        async def story(pods: Pods = pods, moment: int = moment) -> ExitKind:
            (member,) = pods.start(1)
            pods.train(1, [member])
            await pods.hears("trainer-started")
            await asyncio.sleep(2.0 + moment / 40)
            member.assign(Leave(2, "scaled", 60))
            ended = (await member.outcome()).outcome
            await asyncio.sleep(60)
            return ended

        assert in_virtual_time(story) is ExitKind.STOPPED
        stories.add(tuple(pods.story()))
    assert stories == {(), ("Opened 1", "Closed 1")}


def test_a_newer_run_follows_in_the_same_pods() -> None:
    pods = Pods(Behaviour(goal=60))

    async def story() -> list[ExitKind]:
        members = pods.start(3)
        pods.train(1, members)
        await pods.reaches(25)
        pods.train(2, members[:2], seconds=60, wait=75)
        members[2].assign(Leave(2, "scaled", 60))
        return [(await member.outcome()).outcome for member in members]

    assert in_virtual_time(story) == [ExitKind.COMPLETED, ExitKind.COMPLETED, ExitKind.CHECKPOINTED]
    sound(pods, announced=[(UID, 1)], done=True)


def test_a_standby_is_ready_and_leaves_when_told() -> None:
    pods = Pods()

    async def story() -> tuple[bool, MemberExit]:
        (standby,) = pods.start(1)
        standby.assign(Standby())
        await asyncio.sleep(10)
        ready = standby.ready
        standby.assign(Leave(1))
        return ready, await standby.exit()

    ready, end = in_virtual_time(story)
    assert ready
    assert end.exit_code == 1  # it has saved nothing


def test_a_killed_peer_is_noticed_and_the_next_run_goes_on_where_the_others_stood() -> None:
    pods = Pods(Behaviour(goal=60))

    async def story() -> ExitKind:
        members = pods.start(2)
        pods.train(1, members)
        await pods.reaches(33)
        members[0].kill()
        await asyncio.sleep(5)
        survivors = [members[1], *pods.start(1)]
        pods.train(2, survivors, lost=(1,))
        return (await survivors[0].outcome()).outcome

    assert in_virtual_time(story) is ExitKind.COMPLETED
    sound(pods, done=True)
    assert figures(pods.log, pods.witness).lost == 0
    assert pods.story()[3].startswith("Committed 2 @3")


def test_where_no_member_is_left_the_next_run_continues_from_the_last_commit() -> None:
    pods = Pods(Behaviour(goal=60))

    async def story() -> ExitKind:
        members = pods.start(2)
        pods.train(1, members)
        await pods.reaches(33)
        for member in members:
            member.kill()
        await asyncio.sleep(5)
        others = pods.start(2)
        pods.train(2, others, lost=(1,))
        return (await others[0].outcome()).outcome

    assert in_virtual_time(story) is ExitKind.COMPLETED
    sound(pods, done=True)
    assert figures(pods.log, pods.witness).lost == pytest.approx(13, abs=2)


def test_a_run_that_hangs_is_asked_for_an_image_once_it_is_lost() -> None:
    pods = Pods(Behaviour(goal=60))

    async def story() -> None:
        members = pods.start(2)
        pods.train(1, members)
        await pods.reaches(33)
        pods.wires.part([members[0].ip], [members[1].ip])
        await asyncio.sleep(10)
        survivors = [members[1], *pods.start(1)]
        pods.train(2, survivors, lost=(1,))
        await survivors[0].outcome()

    in_virtual_time(story)
    assert figures(pods.log, pods.witness).lost == 0


@pytest.mark.parametrize("told", ["leave", "SIGTERM"])
def test_who_goes_with_an_image_commits_it_first(told: str) -> None:
    pods = Pods(Behaviour(goal=60))

    async def story() -> CommitRef | None:
        one, other = members = pods.start(2)
        pods.train(1, members)
        await pods.reaches(33)
        one.kill()
        await asyncio.sleep(5)
        if told == "leave":
            other.assign(Leave(2, "scaled", 60))
        else:
            other.sigterm.set()
        return (await other.outcome()).commit

    commit = in_virtual_time(story)
    assert commit
    assert commit.step >= 33
    assert pods.story()[-1] == f"Committed 1 @{commit.step}!"
    sound(pods)


def test_two_that_go_commit_it_once() -> None:
    pods = Pods(Behaviour(goal=60))

    async def story() -> None:
        members = pods.start(3)
        pods.train(1, members)
        await pods.reaches(33)
        members[0].kill()
        await asyncio.sleep(5)
        for member in members[1:]:
            member.assign(Leave(2, "scaled", 60))
        for member in members[1:]:
            commit = (await member.outcome()).commit
            assert commit
            assert commit.step >= 33

    in_virtual_time(story)
    assert len([words for words in pods.story() if words.endswith("!")]) == 1
    sound(pods)


def test_of_what_is_suspect_nothing_is_committed() -> None:
    pods = Pods(Behaviour(goal=60))

    async def story() -> None:
        one, other = members = pods.start(2)
        pods.train(1, members)
        await pods.reaches(33)
        one.kill()
        other.assign(Leave(2, "a device is at fault", 0, lost=(1,), suspect=True))
        await other.outcome()

    in_virtual_time(story)
    assert pods.story()[-1] == "Committed 1 @20"


def test_a_zombie_behind_a_partition_is_fenced_when_it_commits() -> None:
    pods = Pods(Behaviour(goal=200))

    async def story() -> ExitKind:
        zombies = pods.start(2)
        pods.train(1, zombies)
        await pods.reaches(25)
        others = pods.start(2)
        pods.wires.part([member.ip for member in zombies], [member.ip for member in others])
        pods.train(2, others, lost=(1,))
        ended = await zombies[0].outcome()
        await pods.hears("committed", run=2)
        return ended.outcome

    assert in_virtual_time(story) is ExitKind.FENCED
    sound(pods)


def test_a_partition_stops_training_and_healing_lets_it_go_on() -> None:
    pods = Pods(Behaviour(goal=40))

    async def story() -> float:
        members = pods.start(2)
        pods.train(1, members)
        await pods.reaches(12)
        pods.wires.part([members[0].ip], [members[1].ip])
        await asyncio.sleep(300)
        assert len(pods.witness.trained) <= 13
        pods.wires.cut.clear()
        await members[0].outcome()
        return asyncio.get_running_loop().time()

    assert in_virtual_time(story) > 300
    sound(pods, done=True)


def test_a_lost_answer_is_no_fence() -> None:
    pods = Pods(Behaviour(goal=60, every_steps=2))
    pods.bucket.lost_answer_rate = 0.3

    async def story() -> list[ExitKind]:
        members = pods.start(2)
        pods.train(1, members)
        return [(await member.outcome()).outcome for member in members]

    assert in_virtual_time(story) == [ExitKind.COMPLETED, ExitKind.COMPLETED]
    sound(pods, done=True)


def test_an_exit_save_is_tried_again_until_an_outage_is_over() -> None:
    pods = Pods()

    async def story() -> ExitKind:
        members = pods.start(2)
        pods.train(1, members)
        await pods.reaches(31)
        pods.bucket.down = True
        for member in members:
            member.assign(Leave(2, "node leaves", 120))
        await asyncio.sleep(60)
        pods.bucket.down = False
        return (await members[0].outcome()).outcome

    assert in_virtual_time(story) is ExitKind.CHECKPOINTED
    sound(pods, announced=[(UID, 1)])


def test_while_the_store_is_down_for_long_members_train_most_of_the_time() -> None:
    """A save that fails takes 6 s, and one is due after every second step."""
    pods = Pods(Behaviour(goal=400, step_seconds=1.0, every_steps=2))

    async def story() -> int:
        pods.train(1, pods.start(2))
        await pods.reaches(10)
        before, pods.bucket.down = len(pods.witness.trained), True
        await asyncio.sleep(300)
        return len(pods.witness.trained) - before

    assert in_virtual_time(story) > 200


def test_the_time_to_save_ends_although_the_store_is_down() -> None:
    """After 30 s for the save, 5 s for an image, and 60 s for its commit."""
    pods = Pods()

    async def story() -> tuple[ExitKind, float]:
        members = pods.start(2)
        pods.train(1, members)
        await pods.reaches(31)
        pods.bucket.down = True
        begun = asyncio.get_running_loop().time()
        for member in members:
            member.assign(Leave(2, "node leaves", 30))
        return (await members[0].outcome()).outcome, asyncio.get_running_loop().time() - begun

    outcome, seconds = in_virtual_time(story)
    assert outcome in (ExitKind.EXIT_TIMEOUT, ExitKind.FAILED)
    assert 20 < seconds < 96


def test_of_two_requests_the_nearer_deadline_counts() -> None:
    pods = Pods(env={Env.GRACE_SECONDS: "20"})

    async def story() -> float:
        members = pods.start(2)
        pods.train(1, members)
        await pods.reaches(31)
        pods.bucket.down = True
        begun = asyncio.get_running_loop().time()
        members[0].assign(Leave(2, "node leaves", 300))
        await asyncio.sleep(1)
        members[0].sigterm.set()
        await members[0].exit()
        return asyncio.get_running_loop().time() - begun

    assert 10 < in_virtual_time(story) < 22


def test_who_is_asked_before_the_first_step_closes_the_log() -> None:
    pods = Pods(Behaviour(step_seconds=30.0))

    async def story() -> list[ExitKind]:
        members = pods.start(2)
        pods.train(1, members)
        await pods.hears("opened", run=1)
        await asyncio.sleep(1)
        for member in members:
            member.assign(Leave(2, "changed my mind", 60))
        return [(await member.outcome()).outcome for member in members]

    assert in_virtual_time(story) == [ExitKind.STOPPED, ExitKind.STOPPED]
    assert pods.story() == ["Opened 1", "Closed 1"]


def test_a_rank_that_raises_is_distinguished_from_its_peer() -> None:
    pods = Pods(Behaviour(crash_per_step=0.05))

    async def story() -> set[ExitKind]:
        members = pods.start(2)
        pods.train(1, members)
        return {(await member.outcome()).outcome for member in members}

    assert in_virtual_time(story) == {ExitKind.FAILED, ExitKind.PEER_LOST}


def test_a_rank_that_hangs_is_killed_when_its_time_to_save_is_over() -> None:
    pods = Pods(Behaviour(hang_per_step=0.05))

    async def story() -> ExitKind:
        (member,) = pods.start(1)
        pods.train(1, [member])
        await asyncio.sleep(500)
        member.assign(Leave(2, "node leaves", 20))
        return (await member.outcome()).outcome

    assert in_virtual_time(story) is ExitKind.EXIT_TIMEOUT


def test_out_of_memory_ends_the_container_without_a_word_or_its_trainer_alone() -> None:
    def end(seed: int) -> MemberExit:
        pods = Pods(Behaviour(oom_at_step=12), seed)

        async def story() -> MemberExit:
            (member,) = pods.start(1)
            pods.train(1, [member])
            return await member.exit()

        return in_virtual_time(story)

    ends = [end(seed) for seed in range(24)]
    assert {each.exit_code for each in ends} == {1, 137}
    assert all(bool(each.termination_message) == (each.exit_code == 1) for each in ends)
    errors = [read_outcome(each.termination_message).error for each in ends if each.exit_code == 1]
    assert {error and error.name for error in errors} == {ErrorName.OUT_OF_MEMORY}


@pytest.mark.parametrize(("hook", "seconds", "found"), [(False, 0.01, False), (False, 0.3, True), (True, 0.01, True)])
def test_a_deletion_before_the_first_line_of_the_agent_is_found_by_its_hook_alone(
    hook: bool, seconds: float, found: bool
) -> None:
    pods = Pods(Behaviour(warm_seconds=1.0), hook=hook)

    async def story() -> bool:
        (member,) = pods.start(1)
        member.assign(Standby())
        await asyncio.sleep(seconds)
        member.sigterm.set()
        await asyncio.sleep(60)
        return any("leaving" in line for line in member.lines)

    assert in_virtual_time(story) is found


def test_an_emptied_log_is_refused_where_a_commit_was_known_and_started_over_where_none_was() -> None:
    def story_of(floor: CommitRef | None) -> tuple[Pods, Outcome]:
        pods = Pods(Behaviour(goal=40))

        async def story() -> Outcome:
            first = pods.start(2)
            pods.train(1, first)
            await pods.reaches(25)
            for member in first:
                member.kill()
            await asyncio.sleep(1)
            pods.bucket.objects.clear()
            second = pods.start(2)
            pods.train(2, second, lost=(1,), floor=floor)
            return await second[0].outcome()

        return pods, in_virtual_time(story)

    pods, refused = story_of(CommitRef(2, 20))
    assert (refused.outcome, refused.error and refused.error.name) == (ExitKind.FAILED, ErrorName.LOG_LOST)
    assert pods.bucket.objects == {}
    pods, anew = story_of(None)
    assert anew.outcome is ExitKind.COMPLETED


def test_the_next_run_waits_until_the_one_before_has_saved() -> None:
    pods = Pods(Behaviour(goal=200, save_seconds=20.0))

    async def story() -> None:
        old = pods.start(2)
        pods.train(1, old)
        await pods.reaches(31)
        new = pods.start(2)
        for member in old:
            member.assign(Leave(2, "node leaves", 60))
        pods.train(2, new, seconds=60, wait=75)
        await pods.hears("opened", run=2)

    in_virtual_time(story)
    assert pods.story()[-2].startswith("Committed 1")
    assert pods.story()[-2].endswith("!")
    sound(pods, announced=[(UID, 1)])


def test_a_run_number_is_used_once_and_the_refusal_tells_the_highest() -> None:
    pods = Pods()

    async def story() -> tuple[ExitKind, int]:
        pods.train(7, pods.start(2))
        await pods.reaches(12)
        (late,) = pods.start(1)
        pods.train(7, [late])
        outcome = await late.outcome()
        return outcome.outcome, outcome.opened

    assert in_virtual_time(story) == (ExitKind.FENCED, 7)
    sound(pods)


def test_a_store_that_lists_in_no_order_changes_nothing() -> None:
    pods = Pods(Behaviour(goal=60))
    pods.wires.shared["unordered", ROOT] = True

    async def story() -> None:
        first = pods.start(2)
        pods.train(1, first)
        await pods.reaches(45)
        second = pods.start(2)
        pods.train(2, second, lost=(1,))
        await second[0].exit()

    in_virtual_time(story)
    sound(pods, done=True)


def test_a_seed_always_gives_the_same_history() -> None:
    def history() -> tuple[dict[str, bytes], list[object]]:
        pods = Pods(Behaviour(goal=60, crash_per_step=0.002), seed=7)
        pods.bucket.lost_answer_rate = pods.bucket.error_rate = 0.05

        async def story() -> None:
            members = pods.start(4)
            pods.train(1, members)
            for member in members:
                await member.exit()

        in_virtual_time(story)
        return pods.bucket.objects, list(pods.facts)

    assert history() == history()


@pytest.mark.parametrize("seed", range(20))
def test_whatever_the_store_does_the_log_stays_sound(seed: int) -> None:
    pods = Pods(Behaviour(goal=120, every_steps=10), seed, {Env.KEEP: "2"})
    pods.bucket.error_rate = 0.05 * (seed % 3)
    pods.bucket.lost_answer_rate = 0.05 * (seed % 4)
    pods.bucket.slow_seconds = 2.0 * (seed % 5)

    async def story() -> None:
        members = pods.start(3)
        run = 0
        for run in range(1, 5):
            pods.train(run, members, seconds=30, wait=45)
            await asyncio.sleep(60)
            if run % 2:
                members[run % 3].kill()
            for member in members:
                member.assign(Leave(run + 1, "next", 30))
            members = pods.start(3)
        pods.train(run + 1, members, wait=45)
        await asyncio.sleep(600)

    in_virtual_time(story)
    sound(pods, keep=2)
