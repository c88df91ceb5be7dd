"""The agent passes on that a run is asked to save and train on: once for each number that is higher than the last."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from perdure.agent.state import Ask, AskForSave, AssignmentRead, SigtermReceived
from perdure.wire import ExitKind, Handover, HandoverWord, Train
from perdure.wire.channel import Attached, HandoverEnded, StepDone, TookOver
from tests.unit.runtime.agent.member import TRAINER, Member
from tests.unit.runtime.agent.test_machine import RUN1, Pod, attached, importing, reported

BLOCK = Handover(1, 2, (1,), (1,), "10.0.0.1:30000", limit=60, token="secret")
NEXT = Train(2, 0, 2, RUN1.master, seconds=600, wait=615, handover=BLOCK)


def asking(save: int, train: Train = RUN1) -> AssignmentRead:
    return AssignmentRead(replace(train, save=save))


def training() -> Pod:
    pod = attached()
    pod.sees(reported(StepDone(3)))
    return pod


class TestWhatItDoes:
    def test_the_trainer_is_asked_by_its_file_and_by_no_signal(self) -> None:
        assert training().sees(asking(1)) == (AskForSave(1, "1 1"),)

    def test_once_for_each_higher_number(self) -> None:
        pod = training()
        assert [pod.sees(asking(number)) for number in (1, 1, 2, 1, 2, 4)] == [
            (AskForSave(1, "1 1"),),
            (),
            (AskForSave(1, "1 2"),),
            (),
            (),
            (AskForSave(1, "1 4"),),
        ]

    def test_an_operator_that_does_not_know_of_it_takes_nothing_back(self) -> None:
        pod = training()
        pod.sees(asking(1))
        assert pod.sees(asking(0)) == ()
        assert pod.sees(asking(1)) == ()

    def test_its_time_to_save_may_get_shorter_all_the_same(self) -> None:
        pod = Pod()
        pod.sees(AssignmentRead(replace(RUN1, seconds=600)))
        pod.sees(asking(1, replace(RUN1, seconds=300)))
        assert pod.state.current == replace(RUN1, seconds=300, save=1)

    def test_nothing_else_of_a_runs_assignment_changes_with_it(self) -> None:
        pod = training()
        pod.sees(asking(1, replace(RUN1, master="10.9.9.9:29501")))
        assert pod.state.current == replace(RUN1, save=1)

    def test_a_trainer_that_imports_finds_it_later_and_the_log_says_so(self) -> None:
        assert "once it has a Session, which is needed to save" in importing().says(asking(1))
        assert "asked to save and train on" in training().says(asking(1))

    def test_a_run_that_begins_with_a_number_is_asked_at_once(self) -> None:
        pod = Pod()
        assert AskForSave(1, "1 3") in (*pod.sees(asking(3)), *pod.sees(reported(Attached(41))))

    def test_who_has_to_leave_is_not_asked_for_two_saves(self) -> None:
        pod = training()
        assert isinstance(pod.sees(SigtermReceived())[0], Ask)
        assert pod.sees(asking(1)) == ()


class TestAHandOver:
    def _offered(self) -> Pod:
        pod = importing()
        pod.sees(reported(Attached(41, live=True)), reported(StepDone(3)))
        pod.sees(AssignmentRead(NEXT))
        return pod

    def test_a_run_that_is_only_offered_is_not_asked(self) -> None:
        assert not any(isinstance(one, AskForSave) for one in self._offered().sees(asking(1, NEXT)))

    def test_one_that_has_taken_over_is_and_by_the_file_of_the_trainer_that_was_started(self) -> None:
        pod = self._offered()
        pod.sees(reported(TookOver(2, 0, 2, 4, {})))
        assert pod.sees(asking(1, NEXT)) == (AskForSave(1, "2 1"),)

    def test_one_that_has_not_is_not(self) -> None:
        pod = self._offered()
        pod.sees(reported(HandoverEnded(2, HandoverWord.ABORT, "the newcomer is silent")))
        assert pod.sees(asking(1, NEXT)) == ()


@pytest.mark.parametrize("numbers", [(1,), (1, 2)])
def test_a_real_trainer_finds_it_trains_on_and_ends_as_it_would(tmp_path: Path, numbers: tuple[int, ...]) -> None:
    with Member(tmp_path, *TRAINER, "saves_when_asked", json.dumps(len(numbers))) as member:
        member.assign(Train(1, 0, 1, RUN1.master))
        member.told("training")
        for number in numbers:
            member.assign(replace(Train(1, 0, 1, RUN1.master), save=number))
            assert member.told("word") == f"1 {number}"
        outcome, status = member.outcome()
        assert (outcome.outcome, status) == (ExitKind.COMPLETED, 0)
