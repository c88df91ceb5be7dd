"""All that can happen to an agent, in every order: the stages are those that are drawn, and what must hold holds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pytest

from perdure.agent import exit_cause, handover, machine, stage
from perdure.agent.machine import react
from perdure.agent.stage import AgentStage, due, limit_of
from perdure.agent.state import (
    HOLDS_SEAT,
    Acknowledge,
    AgentSettings,
    AgentState,
    Ask,
    AssignmentRead,
    Cleared,
    Event,
    Finish,
    Kill,
    MakesWay,
    MarkWarm,
    OfferAssignment,
    PrintLine,
    Process,
    ProcessEnded,
    ReportReceived,
    Rescued,
    SigtermReceived,
    Start,
    Tick,
    Unreadable,
    Warmed,
)
from perdure.wire import Assignment, ExitKind, HandoverWord, Leave, Standby, Train
from perdure.wire.channel import (
    Attached,
    Exiting,
    HandoverEnded,
    Imaged,
    Imaging,
    SessionOpened,
    StepDone,
    TookOver,
    TrainerReport,
    Voting,
)
from tests.support.worlds import replacing_quickly, uncollected
from tests.unit.runtime.agent.worlds import RUN, Step, World, leave, taking_over, train

DRAWN = Path(__file__).parents[4] / "docs" / "agent.md"
ONE = World(AgentSettings())
TWO = World(
    AgentSettings(processes=2),
    assignments=(train(RUN), train(RUN + 1)),
    endings=(ExitKind.CHECKPOINTED,),
    statuses=(1,),
    others=(),
)
COLD = World(
    AgentSettings(), assignments=(Standby(), train(RUN), leave(RUN + 1)), endings=(), statuses=(0,), warming=True
)
OFFERED = taking_over(train(RUN + 1), RUN)


def _live(*assignments: Assignment, ending: ExitKind = ExitKind.CHECKPOINTED, others: Sequence[Event] = ()) -> World:
    given = (train(RUN), *assignments)
    return World(AgentSettings(), given, (ending,), statuses=(1,), others=others, opens=len(given) < 3, live=True)


LIVE = (
    _live(OFFERED, train(RUN + 2, lost=(RUN, RUN + 1))),
    _live(OFFERED, train(RUN + 2)),
    _live(OFFERED, taking_over(train(RUN + 2, lost=(RUN,)), RUN + 1)),
    _live(taking_over(leave(RUN + 1), RUN), ending=ExitKind.HANDED_OVER, others=(SigtermReceived(),)),
    _live(OFFERED, ending=ExitKind.PEER_LOST, others=(SigtermReceived(),)),
)
"""Each beside the others, for all of it at once is far more."""
IMAGES = World(
    AgentSettings(),
    assignments=(train(RUN), train(RUN + 1, lost=(RUN,)), leave(RUN + 1)),
    endings=(ExitKind.PEER_LOST,),
    statuses=(1,),
    opens=False,
    images=True,
)
WAYS = (
    World(
        AgentSettings(),
        assignments=(train(RUN), train(RUN + 1), leave(RUN + 2)),
        endings=(ExitKind.CHECKPOINTED,),
        statuses=(1,),
        opens=False,
        makes_way=True,
    ),
    World(
        AgentSettings(processes=2),
        assignments=(train(RUN), train(RUN + 1)),
        endings=(ExitKind.CHECKPOINTED,),
        statuses=(1,),
        others=(),
        opens=False,
        makes_way=True,
    ),
)
COLUMNS: dict[type[TrainerReport], str] = {
    Attached: "attached",
    SessionOpened: "opened",
    StepDone: "step",
    Voting: "voting",
    TookOver: "took over",
    HandoverEnded: "did not",
    Imaging: "image",
    Imaged: "image",
    Exiting: "exiting",
}
HEADS = [
    *("run", "offer", "leave", "lost", *dict.fromkeys(COLUMNS.values())),
    *("way", "end", "cleared", "rescued", "warmed", "time"),
]
LASTING = {
    AgentStage.NONE,
    AgentStage.STARTED,
    AgentStage.ATTACHED,
    AgentStage.OPENED,
    AgentStage.STEPPED,
    AgentStage.VOTING,
}
"""Where a trainer may stay for as long as it likes, or the word of the log may take."""

Table = dict[tuple[AgentStage, str], frozenset[AgentStage]]


@pytest.fixture(scope="module")
def one() -> list[Step]:
    return explored(ONE)


@pytest.fixture(scope="module")
def two() -> list[Step]:
    return explored(TWO)


@pytest.fixture(scope="module")
def live() -> list[Step]:
    return explored(*LIVE)


@pytest.fixture(scope="module")
def ways() -> list[Step]:
    return explored(*WAYS)


@pytest.fixture(scope="module")
def steps(one: list[Step], two: list[Step], live: list[Step], ways: list[Step]) -> list[Step]:
    return [*one, *two, *explored(COLD), *live, *explored(IMAGES), *ways]


@uncollected()
def explored(*worlds: World) -> list[Step]:
    with replacing_quickly(exit_cause, handover, machine, stage):
        return [step for world in worlds for step in world.explored()]


def column(event: Event, state: AgentState) -> str:
    """The column in which the drawn table has this event."""
    match event:
        case AssignmentRead(Train() | Leave() as given):
            run = state.trainer.run if state.trainer else 0
            if given.handover and given.handover.run == run:
                return "offer"
            return "lost" if run in given.lost else "run" if isinstance(given, Train) else "leave"
        case SigtermReceived() | Unreadable():
            return "leave"
        case ReportReceived(_, report):
            return COLUMNS[type(report)]
        case MakesWay():
            return "way"
        case Rescued():
            return "rescued"
        case ProcessEnded():
            return "end"
        case Cleared():
            return "cleared"
        case Warmed():
            return "warmed"
        case _:
            return "time"


def drawn() -> Table:
    """The table of docs/agent.md."""
    rows = [line[1:-1].split("|") for line in DRAWN.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    cells = [[cell.strip(" `") for cell in row] for row in rows]
    heads = next(row for row in cells if row[0] == "stage")
    table: Table = {}
    for row in cells[cells.index(heads) + 2 :]:
        for head, cell in zip(heads[1:], row[1:], strict=True):
            if cell:
                table[AgentStage(row[0]), head] = frozenset(AgentStage(word.strip()) for word in cell.split(","))
    return table


def found(steps: list[Step]) -> Table:
    """The changes of stage that happen; another run's trainer is another one."""
    table: dict[tuple[AgentStage, str], set[AgentStage]] = defaultdict(set)
    for step in steps:
        before, after = step.stages
        if before is not after:
            table[before, column(step.event, step.before)].add(after)
    return {where: frozenset(stages) for where, stages in table.items()}


def written(table: Table) -> str:
    """As docs/agent.md has it."""
    lines = [["stage", *HEADS], ["---"] * (len(HEADS) + 1)]
    for before in AgentStage:
        cells = [", ".join(after for after in AgentStage if after in table.get((before, head), ())) for head in HEADS]
        if any(cells):
            lines.append([f"`{before}`", *cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def test_every_change_of_stage_that_is_drawn_happens_and_no_other(steps: list[Step]) -> None:
    assert drawn() == found(steps), f"draw this in docs/agent.md:\n{written(found(steps))}"


def test_a_trainer_of_the_next_run_starts_only_where_nothing_is_left_of_the_last_but_its_end(steps: list[Step]) -> None:
    for step in steps:
        for action in step.actions:
            if isinstance(action, Start) and step.before.trainer:
                assert action.train.run > step.before.trainer.run
                assert isinstance(step.event, ProcessEnded) or all(map(_left_way, step.before.trainer.alive))
                assert step.after.trainer
                assert step.after.trainer.run == action.train.run


def _left_way(process: Process) -> bool:
    """It has saved, and has only its interpreter to take down, or does so now."""
    return _ending(process) is ExitKind.CHECKPOINTED


def test_only_a_trainer_that_has_saved_and_makes_way_is_not_waited_for(ways: list[Step]) -> None:
    early = [step for step in ways if _started(step) and step.before.trainer and step.before.trainer.alive]
    beside = [step for step in early if not isinstance(step.event, ProcessEnded | Cleared)]
    assert {type(step.event) for step in beside} == {MakesWay, AssignmentRead}
    for step in beside:
        assert step.before.trainer
        told = {step.event.rank} if isinstance(step.event, MakesWay) else set()
        for process in step.before.trainer.processes:
            assert process.outcome or process.makes_way or process.rank in told
            assert (process.outcome.outcome if process.outcome else _ending(process)) is ExitKind.CHECKPOINTED
        assert not step.after.shutdown
        assert step.after.current
        assert step.before.trainer.run not in step.after.current.lost


def test_a_lower_run_is_ignored(steps: list[Step]) -> None:
    lower = [s for s in steps if isinstance(s.event, AssignmentRead) and _run(s.event) < s.before.newest]
    assert lower
    for step in lower:
        assert (step.after.current, step.after.trainer, step.after.hold_until) == (
            step.before.current,
            step.before.trainer,
            step.before.hold_until,
        )
        assert all(isinstance(action, PrintLine) for action in step.actions)


def _run(event: AssignmentRead) -> int:
    return 0 if isinstance(event.assignment, Standby) else event.assignment.run


def test_within_a_run_the_seconds_only_shrink_and_nothing_else_changes(steps: list[Step]) -> None:
    for step in steps:
        old, new = step.before.current, step.after.current
        if old and new and old.run == new.run:
            assert new.seconds <= old.seconds
            assert type(new) is type(old)


def test_no_word_ever_gives_a_trainer_more_time_to_save(steps: list[Step]) -> None:
    for step in steps:
        old, new = step.before.trainer, step.after.trainer
        if old and new and old.run == new.run and old.request and new.alive and not new.killed:
            assert new.request
            assert new.request.deadline + step.seconds <= old.request.deadline


def test_a_trainer_with_a_step_is_killed_only_when_its_time_is_over_or_its_run_is_lost(steps: list[Step]) -> None:
    """Its time: the seconds of the request, and after its own word, or a neighbour's end, what that leaves it."""
    killed = [s for s in steps if Kill() in s.actions and s.before.trainer and s.before.trainer.stepped]
    assert killed
    for step in killed:
        trainer, newer = step.before.trainer, step.after.current
        assert trainer
        if newer and newer.run > trainer.run and trainer.run in newer.lost:
            continue
        if trainer.imaging and trainer.imaging.outcome is ExitKind.EXIT_TIMEOUT:
            continue  # its time was over when it was asked for an image, which it has left or will not
        limit = limit_of(step.before, trainer, step.stages[0])
        assert limit
        assert limit.at <= step.seconds
        assert limit.outcome is not ExitKind.STOPPED


def test_the_outcome_is_written_once_and_is_the_last_thing_done(steps: list[Step]) -> None:
    for step in steps:
        finishing = [action for action in step.actions if isinstance(action, Finish)]
        assert len(finishing) == (1 if step.stages[1] is AgentStage.FINISHED else 0)
        if finishing:
            assert step.actions[-1] is finishing[0]
            assert step.after.trainer is None or not step.after.trainer.alive
            assert react(step.after, AssignmentRead(train(RUN + 9)), 0.0) == (step.after, ())


def test_completed_wins_whatever_comes_before_or_after_it(steps: list[Step]) -> None:
    completed = [s for s in steps if s.before.trainer and s.before.trainer.completed]
    assert completed
    for step in completed:
        for action in step.actions:
            assert not isinstance(action, Start | Ask)
            if isinstance(action, Finish):
                assert action.outcome.outcome is ExitKind.COMPLETED


def test_the_pod_is_held_only_for_ends_that_are_no_fault_of_its_member(steps: list[Step]) -> None:
    for step in steps:
        if step.stages[1] is AgentStage.HELD and step.stages[0] is not AgentStage.HELD:
            assert step.after.trainer
            assert all(p.outcome and p.outcome.outcome in HOLDS_SEAT for p in step.after.trainer.processes)


def test_every_stage_but_those_of_an_undisturbed_training_has_an_end(steps: list[Step]) -> None:
    for step in steps:
        stage = step.stages[1]
        assert stage is not AgentStage.ENDED
        if stage not in LASTING | {AgentStage.FINISHED}:
            assert due(step.after) is not None


def test_what_is_due_happens_then(steps: list[Step]) -> None:
    for step in steps:
        if isinstance(step.event, Tick):
            assert step.stages[0] is not step.stages[1] or step.after.warming_until is None, step.before


def test_a_member_is_ready_and_starts_once_it_has_an_assignment_and_nothing_is_prepared_any_more(
    steps: list[Step],
) -> None:
    assert any(step.before.warming_until is not None for step in steps)
    for step in steps:
        was, now = _ready(step.before), _ready(step.after)
        assert (MarkWarm() in step.actions) == (now and not was)
        assert not any(isinstance(action, Start) for action in step.actions) or now


def _ready(state: AgentState) -> bool:
    return state.ready and state.warming_until is None


class TestHandOvers:
    """Each of the letters is an invariant's of the hand-over."""

    def test_no_trainer_that_votes_is_killed_for_want_of_a_word(self, live: list[Step]) -> None:
        """H8: only where both of its runs are lost, or its pod ends."""
        killed = [step for step in live if Kill() in step.actions and _voting(step.after)]
        assert killed
        for step in killed:
            trainer, newer, shutdown = step.after.trainer, step.after.current, step.after.shutdown
            assert trainer
            assert trainer.voting
            lost = newer is not None and {trainer.voting.run, trainer.voting.next, trainer.run} <= set(newer.lost)
            assert lost or (shutdown and shutdown.deadline <= 0)

    def test_each_vote_is_acknowledged_and_known_from_then_on(self, live: list[Step]) -> None:
        votes = [
            step for step in live if isinstance(step.event, ReportReceived) and isinstance(step.event.report, Voting)
        ]
        assert votes
        for step in votes:
            assert any(isinstance(action, Acknowledge) for action in step.actions)
            assert _voting(step.after)

    def test_a_pod_that_ends_asks_a_trainer_that_votes_once_the_word_has_come(self, live: list[Step]) -> None:
        deleted = [step for step in live if step.before.shutdown and _voting(step.before)]
        assert deleted
        for step in deleted:
            if _voting(step.after):
                assert not any(isinstance(action, Ask) for action in step.actions)
        asked = [step for step in deleted if any(isinstance(action, Ask) for action in step.actions)]
        assert {type(step.event.report) for step in asked if isinstance(step.event, ReportReceived)} == {
            TookOver,
            HandoverEnded,
        }

    def test_a_run_that_was_offered_begins_here_only_where_the_older_one_has_ended(self, live: list[Step]) -> None:
        """H9, H3: else it may live, or never open."""
        followed = [step for step in live if _started(step) and _was_offered(step)]
        assert followed
        for step in followed:
            assert step.before.trainer
            words = {record.run: record.word for record in step.after.handovers}
            word = words.get(step.after.newest)
            saved = all(_ending(process) is ExitKind.CHECKPOINTED for process in step.before.trainer.processes)
            assert word is HandoverWord.RESTART or (word is None and saved)

    def test_an_attempt_that_did_not_take_place_leaves_the_trainer_alone(self, live: list[Step]) -> None:
        """H7."""
        aborted = [step for step in live if _report(step) == HandoverEnded(RUN + 1, HandoverWord.ABORT)]
        alone = [step for step in aborted if step.before.newest == RUN + 1 and step.before.shutdown is None]
        assert alone
        for step in alone:
            if step.before.trainer and step.before.trainer.request is None:
                assert not step.actions or all(isinstance(action, PrintLine) for action in step.actions)
                assert step.after.trainer
                assert step.after.trainer.request is None

    def test_an_offer_is_a_request_only_when_nothing_comes_of_it(self, live: list[Step]) -> None:
        offered = [step for step in live if any(isinstance(action, OfferAssignment) for action in step.actions)]
        assert offered
        for step in offered:
            assert not any(isinstance(action, Ask | Kill) for action in step.actions)
            assert step.after.trainer
            assert step.after.trainer.request is None


def _voting(state: AgentState) -> bool:
    trainer = state.trainer
    return trainer is not None and trainer.voting is not None and any(p.ending is None for p in trainer.alive)


def _report(step: Step) -> TrainerReport | None:
    return step.event.report if isinstance(step.event, ReportReceived) else None


def _started(step: Step) -> bool:
    return any(isinstance(action, Start) for action in step.actions)


def _was_offered(step: Step) -> bool:
    trainer = step.before.trainer
    return trainer is not None and any(known.run == step.after.newest for known in trainer.offered)


def _ending(process: Process) -> ExitKind | None:
    return process.ending.outcome if process.ending else None
