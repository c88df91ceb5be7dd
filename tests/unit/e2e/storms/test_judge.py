"""The judge of storms is judged: each broken promise is found in what a handmade storm has left, and none else is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from e2e.storms.judge import DOWN, Drain, Entry, Fault, Poll, Step, Storm, drained, gaps, judge, redone

KILL = Fault("killed of the leaver while voting", 30.0, 30.0, killed=((1, 1),))
CALM = [
    {"type": "Running", "status": "True", "message": ""},
    {"type": "Disrupted", "status": "False", "message": ""},
]


def moved(said: str) -> list[dict[str, str]]:
    return [CALM[0], {"type": "Disrupted", "status": "True", "message": said}]


def polls(**status: Any) -> list[Poll]:
    """The same said the whole time."""
    given = {"phase": "Running", "conditions": CALM} | status
    return [Poll(float(second), given) for second in range(5, 56, 5)]


def on(run: int, older: int = 0, **more: Any) -> dict[str, Any]:
    """The run that is on."""
    plan = {"run": run, "takesOver": older, "handover": {"run": older}, "members": [{"name": "digits-1"}]}
    return {"run": run, "plan": plan} | more


def opened(run: int, time: float, **body: Any) -> Entry:
    return Entry("Opened", run, time, {"seq": 10 * run} | body)


def trained(run: int, first: int, last: int, since: float, ranks: Sequence[int] = (0, 1)) -> list[Step]:
    """A step a second."""
    return [Step(run, rank, step, since + step - first) for step in range(first, last + 1) for rank in ranks]


HANDED_OVER = Storm(
    entries=[
        opened(1, 0.0, resumes=None),
        Entry("Committed", 1, 20.0, {"seq": 11, "step": 20}),
        opened(2, 30.5, takesOver=1, step=30, resumes=None),
    ],
    steps=[*trained(1, 1, 30, 1.0), *trained(2, 31, 60, 31.0)],
    faults=[],
    drains=[Drain("n1", 25.0, 35.0, 0)],
    polls=[],
)


LATE = replace(HANDED_OVER, steps=[*trained(1, 1, 30, 1.0), *trained(2, 31, 60, 70.0)])
"""No step for 40 s."""


def words(storm: Storm) -> list[str]:
    return sorted({one.words for one in judge(storm)})


def pauses_of(storm: Storm) -> list[str]:
    return [found for found in words(storm) if found.startswith("no rank trained")]


def told(status: Mapping[str, Any], storm: Storm = HANDED_OVER) -> list[str]:
    """What is wrong with a status that every poll shows."""
    return words(replace(storm, polls=polls(**status)))


def test_an_unharmed_hand_over_is_as_promised() -> None:
    assert told({"current": on(1), "opened": 1}, replace(HANDED_OVER, entries=HANDED_OVER.entries[:2])) == []
    assert redone(HANDED_OVER) == []
    assert max(end - start for start, end in gaps(HANDED_OVER)) == 1.0


def test_steps_that_a_living_rank_had_done_and_a_newer_run_trained_again_are_reported_with_the_fault_before_them() -> (
    None
):
    storm = replace(HANDED_OVER, steps=[*trained(1, 1, 30, 1.0), *trained(2, 28, 60, 31.0)], faults=[KILL])
    assert [step for step, _ in redone(storm)] == [28, 29, 30]
    assert words(storm) == ["3 steps redone (28 to 30) after killed of the leaver while voting"]


def test_what_only_the_killed_rank_had_done_is_no_step_that_was_redone() -> None:
    ahead = [*trained(1, 1, 30, 1.0), Step(1, 1, 31, 30.0), *trained(2, 31, 60, 31.0)]
    assert words(replace(HANDED_OVER, steps=ahead, faults=[KILL])) == []
    assert len(words(replace(HANDED_OVER, steps=ahead, faults=[replace(KILL, killed=())]))) == 1


def test_of_two_faults_at_once_steps_may_be_redone() -> None:
    storm = replace(HANDED_OVER, steps=[*trained(1, 1, 30, 1.0), *trained(2, 28, 60, 31.0)])
    assert words(replace(storm, faults=[KILL, replace(KILL, start=30.2, alone=False)])) == []


@pytest.mark.parametrize(("until", "found"), [(50.0, []), (52.0, ["no rank trained for 22.0 s after nothing"])])
def test_a_pause_above_twenty_seconds_is_reported(until: float, found: list[str]) -> None:
    late = replace(HANDED_OVER, steps=[*trained(1, 1, 30, 1.0), *trained(2, 31, 60, until)])
    assert words(late) == found


def test_a_pause_counts_only_while_no_process_is_frozen() -> None:
    frozen = Fault("frozen of the stayer while voting", 32.0, 52.0)
    assert words(replace(LATE, faults=[frozen])) == []
    assert words(replace(LATE, faults=[replace(frozen, end=49.0)])) == [
        "no rank trained for 21.0 s after frozen of the stayer while voting"
    ]


@pytest.mark.parametrize("kind", ["killed", "everything-killed", *sorted(DOWN), "store-slow"])
def test_no_other_fault_excuses_a_pause_in_which_no_live_hand_over_is_decided(kind: str) -> None:
    """Not even a run that has died and begins anew."""
    begun = [*LATE.entries[:2], opened(2, 69.0, resumes=11, image={"run": 1, "step": 30})]
    assert pauses_of(replace(LATE, entries=begun, faults=[Fault(f"{kind} for 20 s", 32.0, 52.0)])) == [
        f"no rank trained for 40.0 s after {kind} for 20 s"
    ]


@pytest.mark.parametrize(
    "decision", [opened(2, 33.0, takesOver=1, step=30, resumes=None), Entry("Refused", 1, 58.0, {"refuses": 2})]
)
def test_a_store_that_is_down_excuses_a_pause_in_which_a_live_hand_over_is_decided(decision: Entry) -> None:
    late = replace(LATE, entries=[*LATE.entries[:2], decision])
    for kind in sorted(DOWN):
        assert pauses_of(replace(late, faults=[Fault(f"{kind} while putting", 32.0, 52.0)])) == []
        assert len(pauses_of(replace(late, faults=[Fault(f"{kind} while putting", 32.0, 49.0)]))) == 1
    for kind in ("store-slow", "killed"):
        assert len(pauses_of(replace(late, faults=[Fault(f"{kind} while putting", 32.0, 52.0)]))) == 1


def test_a_decision_in_another_pause_excuses_nothing() -> None:
    steps = [*trained(1, 1, 30, 1.0), *trained(2, 31, 40, 31.0), *trained(2, 41, 60, 80.0)]
    storm = replace(HANDED_OVER, steps=steps, faults=[Fault("store-500 for 39 s", 41.0, 80.0)])
    assert pauses_of(storm) == ["no rank trained for 40.0 s after store-500 for 39 s"]


def test_a_cut_link_excuses_a_pause_only_between_ranks_of_a_run_that_is_open_meanwhile() -> None:
    """Nobody waits for a newcomer that cannot be reached."""
    members = {1: ["digits-0", "digits-1"], 2: ["digits-0", "digits-2"]}
    begun = [*LATE.entries[:2], opened(2, 69.0, takesOver=1, step=30, resumes=None)]
    late = replace(LATE, entries=begun, members=members)

    def found(start: float, end: float, *links: tuple[str, str]) -> list[str]:
        return pauses_of(replace(late, faults=[Fault("cut", start, end, links=links)]))

    assert found(32.0, 52.0, ("digits-0", "digits-2"), ("digits-0", "digits-1")) == []
    assert len(found(32.0, 52.0, ("digits-0", "digits-2"), ("digits-1", "digits-2"))) == 1
    assert found(49.5, 69.5, ("digits-0", "digits-2")) == []
    assert len(found(69.5, 69.9, ("digits-0", "digits-1"))) == 1
    assert len(found(32.0, 49.0, ("digits-0", "digits-1"))) == 1


def test_steps_that_are_trained_again_are_no_end_of_a_pause() -> None:
    steps = [*trained(1, 1, 30, 1.0), *trained(2, 1, 60, 31.0)]
    assert max(end - start for start, end in gaps(replace(HANDED_OVER, steps=steps))) == 31.0


def test_a_drain_counts_from_the_end_of_the_last_fault_in_it() -> None:
    drain = Drain("n1", 10.0, 120.0, 0)
    fault = Fault("cut", 40.0, 65.0)
    assert [seconds for _, seconds in drained(replace(HANDED_OVER, drains=[drain], faults=[fault]))] == [55.0]
    assert words(replace(HANDED_OVER, drains=[drain], faults=[fault])) == []
    assert words(replace(HANDED_OVER, drains=[drain])) == ["110.0 s (status 0) after nothing"]
    assert words(replace(HANDED_OVER, drains=[replace(drain, end=15.0, status=1)])) != []


def test_no_number_is_reported_before_it_is_true() -> None:
    early = {"opened": 2, "step": 20}
    found = told(early)
    assert found == ["opened is 2, and the log has opened 1", "step is 20, and no such commit is in the log"]
    assert told({"failures": {"code": 1}}) == ["1 failures are said to be the script's own"]


def test_a_run_is_not_said_to_be_on_before_the_log_has_opened_it() -> None:
    found = told({"current": on(2, 1)})
    assert found == ["run 2 is said to be on, the log has not opened it, and run 1 trains"]
    assert told({"current": on(2, 1, unconfirmed=True)}) == []


def test_a_run_is_not_said_to_be_on_long_after_a_newer_one_was_opened() -> None:
    assert told({"current": on(1)}) == ["run 1 is said to be on and undisturbed, and the log has opened 2"]
    assert told({"current": on(1), "conditions": moved("")}) == []


def test_a_run_that_trains_is_not_being_recovered() -> None:
    found = told({"phase": "Recovering"})
    assert found == ["the phase is Recovering, and run 1 trains", "the phase is Recovering, and run 2 trains"]
    standing = replace(HANDED_OVER, steps=trained(1, 1, 3, 1.0))
    assert told({"phase": "Recovering"}, standing) == []


def test_a_rank_that_stands_still_is_not_said_to_train() -> None:
    said = "node n1 is cordoned; the run trains on while new members start, until 12:00"
    assert told({"conditions": moved(said)}) == []
    found = told({"conditions": moved(said)}, replace(HANDED_OVER, steps=trained(1, 1, 3, 1.0)))
    assert found == [f"status says `the run trains on`, and no rank trains: {said}"]
    unsure = "the run trains on, or waits for run 3, whose offer failed, while new members start"
    assert told({"conditions": moved(unsure)}, replace(HANDED_OVER, steps=trained(1, 1, 3, 1.0))) == []


def test_a_member_that_has_ended_has_no_rank() -> None:
    ended = replace(HANDED_OVER, alive={"digits-1": (0.0, 40.0)})
    assert told({"current": on(2, 1, unconfirmed=True)}, ended) == [
        "Running says that all members have their ranks, and digits-1 has ended"
    ]
    assert told({"current": on(2, 1, unconfirmed=True)}, replace(ended, alive={"digits-1": (0.0, 51.0)})) == []


def test_a_job_that_has_failed_or_is_said_to_be_complete_is_reported() -> None:
    failed = [*CALM, {"type": "Failed", "status": "True", "message": "too many"}]
    assert told({"phase": "Failed", "conditions": failed}) == ["the job has failed: too many"]
    assert told({"phase": "Completed"}) == ["the phase is Completed, and the log does not say so"]


def test_the_history_at_the_end_is_compared_with_log_and_traces() -> None:
    def row(run: int, how: str, lost: int = 0) -> dict[str, Any]:
        return {"run": run, "how": how, "stepsLost": lost}

    assert told({"history": [row(1, "start"), row(2, "live")]}) == []
    assert told({"history": [row(2, "in place")]}) == [
        "run 2 took over in place, and the log has that it took over alive"
    ]
    assert told({"history": [row(1, "live")]}) == [
        "run 1 took over live, and the log has that it did not take over alive"
    ]
    assert told({"history": [row(2, "live", 5)]}) == ["run 2: stepsLost is 5, and by the traces 0"]
    assert told({"history": [row(3, "unknown")]}) == ["how run 3 took over is unknown"]
    resumed = [*HANDED_OVER.entries[:2], opened(2, 30.5, resumes=11)]
    assert told({"history": [row(2, "recreate", 10)]}, replace(HANDED_OVER, entries=resumed)) == []
    assert told({"history": [row(2, "recreate")]}, replace(HANDED_OVER, entries=resumed)) == [
        "run 2: stepsLost is 0, and by the traces 10"
    ]


@pytest.mark.parametrize("unreported", [False, True])
def test_steps_lost_are_neither_more_nor_fewer_than_the_traces_show_whoever_reported(unreported: bool) -> None:
    resumed = replace(HANDED_OVER, entries=[*HANDED_OVER.entries[:2], opened(2, 30.5, resumes=11)])

    def found(lost: int, doubt: int = 0) -> list[str]:
        row = {"run": 2, "how": "recreate", "stepsLost": lost, "stepsInDoubt": doubt, "unreported": unreported}
        return told({"history": [row]}, resumed)

    assert found(10) == found(3, doubt=7) == []
    assert found(9) == ["run 2: stepsLost is 9, and by the traces 10"]
    assert found(3, doubt=6) == ["run 2: stepsLost is 3, and by the traces 10"]
    assert found(11) == ["run 2: stepsLost is 11, and by the traces 10"]
