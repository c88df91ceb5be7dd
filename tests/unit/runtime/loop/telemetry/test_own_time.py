"""How much of its time a thread works itself, with the machine in the test's hand; and what the real kernel counts."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from perdure.loop.telemetry.own_time import WINDOW_SECONDS, OwnTime, Scheduled, scheduled


class Machine:
    """One thread on it, and all its clocks."""

    def __init__(self, *, tells: bool = True) -> None:
        self.now, self.ran, self.waited, self.asked = 500.0, 70.0, 3.0, 0
        self._tells = tells
        self.own = OwnTime(now=lambda: self.now, ran=lambda: self.ran, counted=self._counted)

    def _counted(self, thread: int) -> Scheduled | None:
        assert thread == threading.get_native_id()
        self.asked += 1
        return Scheduled(self.ran, self.waited) if self._tells else None

    def passes(self, *, runs: float = 0.0, waits: float = 0.0, sleeps: float = 0.0) -> None:
        """The thread runs, waits for a CPU, and sleeps."""
        self.ran += runs
        self.waited += waits
        self.now += runs + waits + sleeps

    def trains(self, steps: int, **each: float) -> None:
        for _ in range(steps):
            self.passes(**each)
            self.own.stepped()

    def draws(self, **of: float) -> None:
        self.own.begin_draw()
        self.passes(**of)
        self.own.end_draw()


@pytest.fixture
def machine() -> Machine:
    made = Machine()
    made.own.stepped()
    return made


def test_what_a_thread_runs_and_what_it_waits_for_a_cpu_is_its_own_and_what_it_sleeps_is_not(machine: Machine) -> None:
    machine.trains(30, runs=0.5, waits=0.125, sleeps=0.375)
    assert machine.own.share == pytest.approx(0.625)


def test_all_of_a_draw_is_its_own(machine: Machine) -> None:
    for _ in range(30):
        machine.draws(sleeps=0.25)
        machine.trains(1, runs=0.25, sleeps=0.5)
    assert machine.own.share == pytest.approx(0.5)


def test_no_part_of_a_draw_counts_twice(machine: Machine) -> None:
    for _ in range(30):
        machine.draws(runs=0.25, waits=0.25)
        machine.trains(1, runs=0.125, waits=0.125, sleeps=0.25)
    assert machine.own.share == pytest.approx(0.75)


def test_a_thread_that_never_slept_or_only_drew_has_no_time_but_its_own(machine: Machine) -> None:
    machine.trains(30, runs=1.0)
    assert machine.own.share == 1.0
    for _ in range(30):
        machine.draws(sleeps=1.0)
        machine.trains(1)
    assert machine.own.share == 1.0


def test_the_part_of_the_window_in_which_it_drew_is_told_beside_it(machine: Machine) -> None:
    for _ in range(30):
        machine.draws(sleeps=0.125, runs=0.125)
        machine.trains(1, runs=0.25, sleeps=0.5)
    assert (machine.own.share, machine.own.data_share) == (0.5, 0.25)
    machine.own.begin_anew()
    assert machine.own.data_share is None


def test_who_draws_no_batch_of_the_session_waits_for_an_unknown_part(machine: Machine) -> None:
    known = []
    for draws in (0, 1, 0):
        for _ in range(draws):
            machine.draws(sleeps=1.0)
        machine.trains(30, runs=1.0)
        known.append(machine.own.data_share is not None)
    assert known == [False, True, False]


def test_a_share_is_of_one_window_and_known_after_the_first(machine: Machine) -> None:
    shares: list[float | None] = []
    for steps, runs in ((29, 1.0), (1, 1.0), (29, 0.0), (1, 0.0)):
        machine.trains(steps, runs=runs, sleeps=1.0 - runs)
        shares.append(machine.own.share)
    assert shares == [None, 1.0, 1.0, 0.0]


def test_a_step_longer_than_a_window_has_its_share_at_its_end(machine: Machine) -> None:
    machine.trains(1, runs=WINDOW_SECONDS, sleeps=WINDOW_SECONDS)
    assert machine.own.share == 0.5


@pytest.mark.parametrize(
    "during", [lambda machine: machine.passes(runs=99.0), lambda machine: machine.draws(sleeps=99.0)]
)
def test_what_it_does_in_a_pause_does_not_count(machine: Machine, during: Callable[[Machine], None]) -> None:
    machine.trains(10, runs=0.5, sleeps=0.5)
    machine.own.pause()
    during(machine)
    machine.own.go_on()
    machine.trains(20, runs=0.5, sleeps=0.5)
    assert machine.own.share == 0.5


def test_before_the_first_step_nothing_counts() -> None:
    machine = Machine()
    machine.own.go_on()
    machine.draws(sleeps=99.0)
    machine.trains(1, runs=99.0)
    machine.trains(30, runs=0.25, sleeps=0.75)
    assert machine.own.share == 0.25


def test_among_other_ranks_it_begins_anew(machine: Machine) -> None:
    machine.trains(40, runs=1.0)
    machine.own.begin_anew()
    shares = [machine.own.share]
    machine.trains(1, runs=99.0)
    machine.trains(30, sleeps=1.0)
    assert [*shares, machine.own.share] == [None, 0.0]


def test_the_kernel_is_asked_once_in_a_window_and_not_at_each_step(machine: Machine) -> None:
    before = machine.asked
    for _ in range(240):
        machine.draws(sleeps=0.0625)
        machine.trains(1, runs=0.0625)
    assert machine.asked - before == 2


def test_where_the_kernel_does_not_tell_no_share_is_known() -> None:
    machine = Machine(tells=False)
    machine.own.stepped()
    machine.draws(sleeps=1.0)
    machine.trains(99, runs=1.0)
    assert machine.own.share is None


def test_the_kernel_counts_what_a_thread_runs() -> None:
    before = scheduled(threading.get_native_id())
    if before is None:
        pytest.skip("this kernel does not count what threads run")
    for number in range(10**6):
        number * number
    after = scheduled(threading.get_native_id())
    assert after is not None
    assert after.ran > before.ran
    assert after.waited >= before.waited


def test_a_thread_that_is_gone_has_no_count() -> None:
    assert scheduled(2**22 + 1) is None
