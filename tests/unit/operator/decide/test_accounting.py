"""What a job's time went to: equal to a recount from all that happened, whatever reports were lost."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise

import pytest

from perdure.loop.telemetry.ledger import Ledger
from perdure.wire import ExitKind
from perdure.wire.account import RunAccount
from perdure.wire.report import Report, read_report, write_report
from perdure_operator.api.status import PAUSE_SECONDS, Disruption, Intent, PreviousRun, TimeAccount, TimeGoesTo
from perdure_operator.decide.accounting import badput, changed, goodput, keep_account, settled, undecided, with_accounts
from perdure_operator.decide.draft import Draft
from tests.support.full_status import NOON
from tests.support.job_life import Happened, JobLife
from tests.support.jobs import Job, job

WAITS = {"held": TimeGoesTo.HELD, "nodes": TimeGoesTo.NODES, "members": TimeGoesTo.MEMBERS}


class Watcher:
    """Replays a life: the trainer's ledger on one side, status on the other."""

    def __init__(self, life: JobLife, *, late: bool = False) -> None:
        """`late`: what a leaver tells last comes after a newcomer's first account."""
        self.late = late
        self.leavers: tuple[RunAccount, ...] = ()
        """What is on its way."""
        self.now = 0.0
        self.ledger: Ledger | None = None
        self.beside: Ledger | None = None
        """Of a process that was started while another one trains."""
        self.time = TimeAccount()
        self.seen: list[TimeAccount] = []
        for one in life.story:
            self.now = one.at
            if one.what in ("dies", "ended", "is replaced", "over"):
                self._hear_leavers()
                self.seen.append(self.time)
            self.time = self._after(one)
            self.seen.append(self.time)
            if one.what == "reports":
                self._hear_leavers()
                self.seen.append(self.time)

    @property
    def clock(self) -> datetime:
        return NOON + timedelta(seconds=self.now)

    def _hear_leavers(self) -> None:
        if self.leavers:
            time, self.leavers = with_accounts(self.time, self.leavers, self.clock), ()
            self.time = settled(time.model_copy(update={"before": None}), self.clock)

    def _after(self, one: Happened) -> TimeAccount:
        match one.what:
            case "awaits":
                return changed(self.time, WAITS[one.value], self.clock)
            case "assigned":
                return changed(self.time, TimeGoesTo.RUN, self.clock)
            case "over":
                return changed(self.time, None, self.clock)
            case "reports" if self.ledger and self.ledger.accounts:
                return settled(with_accounts(self.time, sent(self.ledger), self.clock), self.clock)
            case "ended" if self.ledger:
                accounts, self.ledger = sent(self.ledger), None
                return with_accounts(self.time, accounts, self.clock, left=one.value)
            case "is replaced" if self.ledger:
                accounts, self.ledger = sent(self.ledger), Ledger(None, now=lambda: self.now)
                self.ledger.does("handover")
                self.ledger.take_over(*one.value)
                if self.late:
                    self.leavers = accounts
                    return self.time
                return with_accounts(self.time, accounts, self.clock)
        self._processes(one)
        if self.ledger:
            self._trains(self.ledger, one)
        return self.time

    def _processes(self, one: Happened) -> None:
        match one.what:
            case "started":
                self.ledger = Ledger(self.now, now=lambda: self.now)
            case "starts beside":
                self.beside = Ledger(self.now, now=lambda: self.now)
            case "begins" if self.beside:
                self.ledger, self.beside = self.beside, None
            case "dies":
                self.ledger = None

    def _trains(self, ledger: Ledger, one: Happened) -> None:
        match one.what:
            case "begins":
                ledger.begin(*one.value)
            case "steps":
                ledger.stepped(one.value)
            case "does":
                ledger.does(one.value)
            case "hangs":
                ledger.hangs(one.value)
            case "commits":
                ledger.committed(one.value)
            case "takes over":
                ledger.take_over(*one.value)


def sent(ledger: Ledger) -> tuple[RunAccount, ...]:
    """The accounts as the operator reads them."""
    return read_report(write_report(Report("ab" * 16, 1, accounts=ledger.accounts))).accounts


def told(time: TimeAccount, *accounts: RunAccount) -> TimeAccount:
    return with_accounts(time, accounts, NOON)


def counted(time: TimeAccount) -> dict[str, float]:
    found = {"productive": goodput(time), "undecided": undecided(time), **badput(time)}
    return {cause.replace("-", ""): seconds for cause, seconds in found.items() if seconds}


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("seed", range(24))
def test_every_second_is_where_a_recount_finds_it(seed: int, *, late: bool) -> None:
    life = JobLife(seed)
    truth, found = life.recount(), counted(Watcher(life, late=late).time)
    assert found == pytest.approx(dict(truth), rel=1e-3, abs=0.1)


@pytest.mark.parametrize("seed", range(24))
def test_pauses_before_new_processes_are_those_of_a_recount(seed: int) -> None:
    life = JobLife(seed)
    truth, found = life.pauses(), Watcher(life).time.restarts
    assert sum(found.counts) == len(truth)
    assert found.seconds == pytest.approx(sum(truth), rel=1e-3, abs=0.1)


GONE = RunAccount(1, 0, 90, productive=90.0, unfinished=0.5)


def test_the_longest_save_of_a_runs_members_is_part_of_the_pause_and_a_later_outcome_takes_nothing_back() -> None:
    on = told(TimeAccount(goes_to=TimeGoesTo.RUN, since=NOON), GONE)
    for saved in (3.0, 8.0, 2.0):
        on = with_accounts(on, [GONE], NOON, left=saved)
    waits = changed(on, TimeGoesTo.NODES, NOON + timedelta(seconds=120))
    again = changed(waits, TimeGoesTo.RUN, NOON + timedelta(seconds=140))
    again = with_accounts(again, [GONE], NOON + timedelta(seconds=140), left=1.0)
    new = RunAccount(2, 90, 90, start=4.0, restore=1.5)
    found = with_accounts(again, [new], NOON + timedelta(seconds=150)).restarts
    assert found.seconds == pytest.approx(8.0 + GONE.unfinished + 20.0 + 4.0 + 1.5)
    assert found.counts[PAUSE_SECONDS.index(60.0)] == sum(found.counts) == 1


def test_a_start_after_a_suspension_is_no_pause_and_the_one_after_it_is() -> None:
    def at(seconds: float) -> datetime:
        return NOON + timedelta(seconds=seconds)

    on = with_accounts(TimeAccount(goes_to=TimeGoesTo.RUN, since=NOON), [GONE], at(100), left=2.0)
    waits = changed(changed(on, None, at(110)), TimeGoesTo.MEMBERS, at(200))
    again = with_accounts(changed(waits, TimeGoesTo.RUN, at(210)), [RunAccount(8, 90, 91, start=4.0)], at(220))
    assert again.restarts.counts == ()
    waits = changed(again, TimeGoesTo.MEMBERS, at(230))
    third = with_accounts(changed(waits, TimeGoesTo.RUN, at(260)), [RunAccount(9, 91, 92, start=5.0)], at(270))
    assert third.restarts.seconds == 35.0


@pytest.mark.parametrize("seed", range(12))
def test_what_nobody_gave_account_of_is_unreported_and_no_cause_gets_it(seed: int) -> None:
    life = JobLife(seed, reports=0.05, accounts_at_death=0.3)
    truth, found = life.recount(), counted(Watcher(life).time)
    assert sum(found.values()) == pytest.approx(sum(truth.values()), rel=1e-3)
    told = truth.keys() - {"unreported", "undecided", "redone", "productive"}
    truth["start"] += life.beside  # it gets what nobody told of the run that went on meanwhile
    assert [cause for cause in told if found.get(cause, 0.0) > truth[cause] + 0.1] == []
    assert found["unreported"] >= truth["unreported"] - 0.1


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_no_counter_ever_falls(seed: int, *, late: bool) -> None:
    seen = [{"productive": goodput(time), **badput(time)} for time in Watcher(JobLife(seed, 0.3, 0.5), late=late).seen]
    fell = [cause for before, after in pairwise(seen) for cause in before if after[cause] < before[cause]]
    assert fell == []


def test_an_account_that_comes_late_takes_nothing_back_from_what_was_unreported() -> None:
    over = changed(TimeAccount(goes_to=TimeGoesTo.RUN, since=NOON), TimeGoesTo.HELD, NOON + timedelta(seconds=100))
    late = told(over, RunAccount(1, 0, 90, productive=90.0))
    late = settled(late, NOON + timedelta(seconds=200))
    assert (over.spent.unreported, late.spent.unreported) == (100.0, 100.0)


def test_the_same_account_again_and_an_older_one_change_nothing() -> None:
    newer = RunAccount(2, 100, 140, productive=40.0, data=3.0, unsaved=10.0, unsaved_steps=10)
    older = RunAccount(2, 100, 120, productive=20.0, data=2.0, unsaved=20.0, unsaved_steps=20)
    known = told(TimeAccount(), newer)
    assert told(known, newer) == told(known, older, newer) == known
    assert told(known, RunAccount(1, 0, 999, productive=999.0)) == known


def test_another_rank_that_waited_elsewhere_adds_what_the_run_has_more_and_nothing_falls() -> None:
    known = told(TimeAccount(), RunAccount(1, 0, 100, productive=90.0, data=10.0))
    other = told(known, RunAccount(1, 0, 110, productive=109.0, data=1.0))
    assert other.spent.model_dump(exclude_defaults=True) == {"productive": 100.0, "data": 10.0}


@pytest.mark.parametrize(
    ("began", "live", "good", "redone"),
    [
        pytest.param(80, False, 80.0, 21.0, id="the-newest-commit"),
        pytest.param(95, False, 95.0, 6.0, id="a-mirrored-part-of-a-step-before"),
        pytest.param(100, False, 100.0, 1.0, id="an-image-of-the-last-step"),
        pytest.param(100, True, 80.0, 0.0, id="the-living-processes"),
        pytest.param(20, False, 80.0, 21.0, id="an-older-commit"),
    ],
)
def test_what_a_run_was_worth_is_known_once_the_next_one_begins(
    began: int, live: bool, good: float, redone: float
) -> None:
    ended = RunAccount(1, 0, 100, productive=100.0, unfinished=1.0, unsaved=20.0, unsaved_steps=20)
    new = RunAccount(2, began, began, live, unsaved=20.0 if live else 0.0, unsaved_steps=20 if live else 0)
    before = told(TimeAccount(), ended)
    after = told(before, new)
    assert (goodput(before), before.spent.redone) == (80.0, 0.0)
    assert [goodput(after), after.spent.redone] == pytest.approx([good, redone])


STOOD = RunAccount(1, 0, 100, productive=100.0, unsaved=20.0, unsaved_steps=20)
JOINED = RunAccount(2, 100, 130, live=True, productive=30.0, unsaved=30.0, unsaved_steps=30, joined=True)
ALONE = RunAccount(3, 130, 140, live=True, productive=10.0, unsaved=40.0, unsaved_steps=40, joined=True)
KNOWS = replace(ALONE, unsaved=5.0, unsaved_steps=5, joined=False)


@pytest.mark.parametrize(
    ("newer", "good"),
    [
        pytest.param([JOINED], 80.0, id="a-newcomer-that-knows-of-no-commit"),
        pytest.param([JOINED, ALONE], 80.0, id="also-after-one-more-hand-over"),
        pytest.param([JOINED, KNOWS], 135.0, id="once-it-knows-of-one"),
        pytest.param([replace(JOINED, joined=False)], 100.0, id="at-once-if-that-is-of-the-step-of-the-hand-over"),
    ],
)
def test_what_a_leaver_had_not_saved_is_undecided_until_a_newcomer_knows_of_a_commit(
    newer: list[RunAccount], good: float
) -> None:
    after = told(TimeAccount(), STOOD)
    for number in range(1, len(newer) + 1):
        after = told(after, *newer[:number])
    assert goodput(after) == good


def test_what_newcomers_to_a_living_run_make_again_is_redone_with_what_the_leaver_had_not_saved() -> None:
    dead = told(told(TimeAccount(), STOOD), JOINED, replace(ALONE, unfinished=1.0))
    again = told(dead, RunAccount(4, 80, 80))
    assert (goodput(dead), goodput(again), again.spent.redone) == (80.0, 80.0, 61.0)


def test_of_unsaved_steps_of_a_leaver_and_of_a_newcomer_those_that_are_lost_count_in_equal_parts() -> None:
    dead = told(told(TimeAccount(), STOOD), JOINED)
    again = told(dead, RunAccount(4, 120, 120))
    assert (dead.spent.productive, again.spent.productive, again.spent.redone) == (130.0, 120.0, 10.0)


def test_the_start_of_processes_beside_a_living_run_counts_from_its_end() -> None:
    now, on = NOON + timedelta(seconds=100), TimeAccount(goes_to=TimeGoesTo.RUN, since=NOON)
    ended = with_accounts(on, [RunAccount(1, 0, 70, productive=70.0)], now)
    began = with_accounts(ended, [RunAccount(2, 70, 71, start=50.0, restore=4.0, productive=1.0)], now)
    assert began.spent.model_dump(exclude_defaults=True) == {"productive": 71.0, "restore": 4.0, "start": 25.0}
    later = now + timedelta(seconds=10)
    newer = with_accounts(began, [RunAccount(2, 70, 75, start=50.0, restore=4.0, productive=5.0)], later)
    found = settled(newer, later).spent.model_dump(exclude_defaults=True)
    assert found == {"productive": 75.0, "restore": 4.0, "start": 25.0, "unreported": 6.0}


def test_two_accounts_that_come_at_once_have_one_room() -> None:
    now, on = NOON + timedelta(seconds=100), TimeAccount(goes_to=TimeGoesTo.RUN, since=NOON)
    ended = with_accounts(on, [RunAccount(1, 0, 70, productive=70.0)], now)
    news = [RunAccount(2, 70, 80, start=50.0, productive=10.0), RunAccount(3, 80, 85, live=True, productive=5.0)]
    assert with_accounts(ended, news, now).spent.model_dump(exclude_defaults=True) == {
        "productive": 85.0,
        "start": 15.0,
    }


def spent(here: Job) -> dict[str, float]:
    time = here.now.time_account
    assert time is not None
    return time.spent.model_dump(exclude_defaults=True)


def goes_to(here: Job) -> TimeGoesTo | None:
    time = here.now.time_account
    assert time is not None
    return time.goes_to


def test_the_operators_clock_says_what_a_job_waited_for() -> None:
    here = job().settle()
    here = here.pod(1, node="").settle()
    assert goes_to(here) is TimeGoesTo.NODES
    here = here.after(30).pod(1, node="n1").settle()
    assert (goes_to(here), spent(here)) == (TimeGoesTo.MEMBERS, {"nodes": 30.0})
    here = here.after(5).ready().settle()
    assert (goes_to(here), spent(here)) == (TimeGoesTo.RUN, {"nodes": 30.0, "members": 5.0})


def test_no_round_writes_status_because_time_passes() -> None:
    here = job().running(world=2)
    assert here.after(3600).plan().status is None


def test_what_a_member_says_as_it_ends_is_counted_and_the_rest_is_unreported() -> None:
    told = RunAccount(1, 0, 20, productive=50.0, start=6.0, save=2.0)
    here = job().running(world=2)
    before = spent(here)
    here = here.after(60).all_ended(ExitKind.COMPLETED, step=20, commit=(4, 20), accounts=(told,)).settle()
    new = {cause: seconds for cause, seconds in spent(here).items() if seconds != before.get(cause)}
    assert new == {"productive": 50.0, "start": 6.0, "save": 2.0, "unreported": 2.0}
    assert (goes_to(here), here.after(600).plan().status) == (None, None)


def test_the_time_of_a_suspension_does_not_count() -> None:
    here = job().running(world=2).spec(suspend=True).settle()
    here = here.after(10).all_ended(ExitKind.CHECKPOINTED, step=20, commit=(4, 20)).settle()
    suspended = spent(here)
    assert goes_to(here) is None
    here = here.after(9000).spec(suspend=False).settle()
    assert (spent(here), goes_to(here)) == (suspended, TimeGoesTo.MEMBERS)


def test_a_job_that_ended_before_anyone_kept_account_gets_none() -> None:
    here = job().running(world=2).all_ended(ExitKind.COMPLETED, step=20, commit=(4, 20)).settle()
    assert here.status(time_account=None).after(60).plan().status is None


HEARD = RunAccount(1, 0, 80, productive=80.0, unsaved=20.0, unsaved_steps=20)
LEFT = RunAccount(1, 0, 95, productive=95.0, handover=1.0, unsaved=35.0, unsaved_steps=35)
CAME = RunAccount(2, 95, 105, live=True, productive=10.0, unsaved=10.0, unsaved_steps=10, joined=True)


def handed_over(*later: RunAccount, seconds: float = 106.0) -> TimeAccount:
    """What is known so long after the run began, if these accounts came one after another behind HEARD."""
    time = TimeAccount(goes_to=TimeGoesTo.RUN, since=NOON)
    for account in (HEARD, *later):
        now = NOON + timedelta(seconds=80.0 if account is HEARD else seconds)
        time = settled(with_accounts(time, [account], now), now)
    return time


def test_what_a_leaver_tells_behind_a_newcomers_first_account_counts_and_none_of_it_is_unreported() -> None:
    waits, whole = handed_over(CAME), handed_over(CAME, LEFT)
    assert waits.spent.model_dump(exclude_defaults=True) == {"productive": 90.0}
    assert whole.spent.model_dump(exclude_defaults=True) == {"productive": 105.0, "handover": 1.0}
    assert (goodput(waits), goodput(whole)) == (60.0, 60.0), "its steps are in no commit that the newcomer knows"
    assert (undecided(waits), undecided(whole)) == (30.0, 45.0)
    assert handed_over(CAME, LEFT, LEFT) == whole
    knows = replace(CAME, unsaved=3.0, unsaved_steps=3, joined=False)
    assert goodput(handed_over(CAME, LEFT, knows)) == goodput(handed_over(CAME, knows, LEFT)) == 102.0


def test_a_leaver_that_was_heard_in_time_and_a_rank_that_stays_leave_nothing_to_wait_for() -> None:
    on, now = TimeAccount(goes_to=TimeGoesTo.RUN, since=NOON), NOON + timedelta(seconds=120)
    stays = settled(with_accounts(on, [LEFT, replace(CAME, joined=False)], now), now)
    assert (stays.before, stays.spent.unreported) == (None, 14.0)


def test_a_late_account_has_no_more_room_than_nobody_else_told_of() -> None:
    full = handed_over(CAME, LEFT, seconds=98.0)
    assert sum(full.spent.model_dump().values()) == pytest.approx(98.0)


def test_what_a_leaver_never_told_is_unreported_once_all_leavers_have_ended() -> None:
    here = job().running(world=2)
    current, waits = here.now.current, handed_over(CAME)
    assert current is not None
    waits = waits.model_copy(update={"since": here.snapshot.now - timedelta(seconds=106)})
    intent = Intent(disruption=Disruption.NODE_LEAVING, cause="n1 is cordoned", since=here.snapshot.now)
    leaves = PreviousRun(run=1, members=current.plan.members[:1], intent=intent)
    now = current.model_copy(update={"run": 2})
    told = [
        keep_account(drafted(here.status(time_account=waits, current=run, previous=previous))).status.time_account
        for run, previous in ((current, None), (now, leaves), (now, None))
    ]
    assert [(one.before is None, one.spent.unreported) for one in told if one] == [(False, 0), (False, 0), (True, 16.0)]


def drafted(here: Job) -> Draft:
    return Draft(snapshot=here.snapshot, status=here.now)
