"""The accounts of one process, with the clock in the test's hand. A whole job: operator/decide/test_accounting."""

from __future__ import annotations

import pytest

from perdure.loop.telemetry.ledger import STEPS, STEPS_KEPT, Ledger
from perdure.wire.account import RunAccount


class Process:
    """A ledger whose process was started at 100 s."""

    def __init__(self) -> None:
        self.now = 100.0
        self.ledger = Ledger(100.0, now=lambda: self.now)

    def begins(self, step: int = 0) -> None:
        self.now += 10.0
        self.ledger.begin(1, step, 2.0)

    def spends(self, seconds: float, what: str = STEPS) -> None:
        before = self.ledger.does(what)
        self.now += seconds
        self.ledger.does(before)

    def trains(self, *steps: int, seconds: float = 1.0) -> None:
        for step in steps:
            self.now += seconds
            self.ledger.stepped(step)

    @property
    def account(self) -> RunAccount:
        return self.ledger.accounts[-1]


def test_there_is_no_account_before_it_trains() -> None:
    process = Process()
    process.spends(3.0, "save")
    process.ledger.begin_draw()
    process.trains(1)
    assert process.ledger.accounts == ()


def test_the_beginning_is_a_restore_and_all_else_since_the_process_was_started() -> None:
    process = Process()
    process.begins(40)
    assert process.account == RunAccount(1, 40, 40, start=8.0, restore=2.0)


def test_a_step_counts_once_it_is_finished_without_what_was_done_in_it() -> None:
    process = Process()
    process.begins()
    process.ledger.begin_draw()
    process.now += 0.5
    assert process.account.data == 0.5
    process.ledger.end_draw()
    process.spends(3.0, "save")
    process.now += 1.0
    assert (process.account.unfinished, process.account.productive) == (1.0, 0.0)
    process.trains(1)
    done = process.account
    assert (done.productive, done.data, done.save, done.unfinished, done.step) == (2.0, 0.5, 3.0, 0.0, 1)


def test_a_batch_of_an_evaluation_is_no_wait_for_data() -> None:
    process = Process()
    process.begins()
    process.ledger.does("evaluation")
    process.ledger.begin_draw()
    process.now += 4.0
    process.ledger.end_draw()
    process.trains(1)  # without an end of the evaluation
    process.trains(2)
    assert (process.account.evaluation, process.account.data, process.account.productive) == (5.0, 0.0, 1.0)


def test_a_hang_takes_what_was_no_progress_and_no_more() -> None:
    process = Process()
    process.begins()
    process.trains(1)
    process.now += 2.0
    process.spends(1.0, "save")
    process.now += 400.0
    process.ledger.hangs(400.0)
    assert (process.account.hang, process.account.unfinished) == (400.0, 2.0)
    process.now += 100.0
    process.trains(2)
    process.trains(3)
    assert (process.account.hang, process.account.productive) == (501.0, 1.0 + 2.0 + 1.0)


@pytest.mark.parametrize("what", ["save", "data", "evaluation"])
def test_a_hang_outside_of_a_step_is_a_hang_alone_and_ends_with_it(what: str) -> None:
    process = Process()
    process.begins()
    before = process.ledger.does(what)
    process.now += 402.0
    process.ledger.hangs(400.0)
    told = process.account
    assert (told.hang, getattr(told, what)) == (400.0, 2.0)
    process.now += 100.0
    process.ledger.does(before)
    process.trains(1)
    told = process.account
    assert (told.hang, getattr(told, what), told.productive) == (500.0, 2.0, 1.0)


def test_an_evaluation_that_goes_on_after_a_hang_is_an_evaluation_again() -> None:
    process = Process()
    process.begins()
    before = process.ledger.does("evaluation")
    for _ in range(2):
        process.now += 350.0
        process.ledger.hangs(300.0)
        process.now += 10.0
        process.ledger.goes_on()
        process.now += 5.0
    assert (process.account.hang, process.account.evaluation) == (620.0, 110.0)
    process.ledger.does(before)
    process.trains(1)
    assert (process.account.hang, process.account.evaluation, process.account.productive) == (620.0, 110.0, 1.0)


def test_a_hang_before_a_newcomer_takes_over_is_none_of_its_steps() -> None:
    process = Process()
    process.ledger.hangs(50.0)
    process.ledger.take_over(2, 30)
    process.trains(31)
    assert (process.account.hang, process.account.productive) == (0.0, 1.0)


def test_steps_are_unsaved_until_a_commit_holds_them_also_over_a_live_hand_over() -> None:
    process = Process()
    process.begins(10)
    process.trains(11, 12, 13)
    process.ledger.committed(11)
    assert (process.account.unsaved, process.account.unsaved_steps) == (2.0, 2)
    process.ledger.take_over(2, 13)
    process.trains(14, seconds=3.0)
    before, after = process.ledger.accounts
    assert (before.run, before.productive, before.unfinished) == (1, 3.0, 0.0)
    assert after == RunAccount(2, 13, 14, live=True, productive=3.0, unsaved=5.0, unsaved_steps=3)
    process.ledger.committed(14)
    assert (process.account.unsaved, process.account.unsaved_steps) == (0.0, 0)


def test_a_newcomers_account_begins_when_it_takes_over() -> None:
    process = Process()
    process.now += 50.0
    process.ledger.take_over(2, 30)
    process.trains(31)
    own = RunAccount(2, 30, 31, live=True, productive=1.0, unsaved=1.0, unsaved_steps=1, joined=True)
    assert process.ledger.accounts == (own,)


@pytest.mark.parametrize(("commit", "joined", "unsaved"), [(29, True, 2), (30, False, 2), (31, False, 1)])
def test_a_newcomer_knows_of_its_own_steps_alone_until_it_knows_of_a_commit(
    commit: int, joined: bool, unsaved: int
) -> None:
    process = Process()
    process.ledger.take_over(2, 30)
    process.trains(31)
    process.ledger.take_over(3, 31)
    process.trains(32)
    assert [one.joined for one in process.ledger.accounts] == [True, True]
    process.ledger.committed(commit)
    assert (process.account.joined, process.account.unsaved_steps) == (joined, unsaved)


def test_the_time_of_a_hand_over_is_shared_by_both_runs() -> None:
    process = Process()
    process.begins()
    process.trains(1)
    process.now += 0.5
    before = process.ledger.does("handover")
    process.now += 0.25
    process.ledger.take_over(2, 1)
    process.now += 0.125
    process.ledger.does(before)
    process.trains(2)
    first, second = process.ledger.accounts
    assert (first.handover, second.handover) == (0.25, 0.125)
    assert (first.unfinished, second.unfinished) == (0.0, 0.0)
    assert second.productive == 1.5  # the step that began before


def test_of_very_many_unsaved_steps_some_are_forgotten_and_none_counts_as_saved_too_soon() -> None:
    process = Process()
    process.begins()
    process.trains(*range(1, 3 * STEPS_KEPT))
    process.ledger.committed(5000)
    assert 0 < process.account.unsaved - (3 * STEPS_KEPT - 1 - 5000) < 10
