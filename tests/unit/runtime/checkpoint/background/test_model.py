"""The machines of all ranks together, in every order of events of a small world.

Each setting says how many hand-outs there are, what may be requested, and which faults may happen how often. Its whole
world is explored. The laws: every commit names a whole save of one step, and stays; numbers and steps grow; no entry of
a run comes behind a newer one or behind its own end; no arena is overwritten while another process may read it; hooks
get entries alone, once, on all ranks at one hand-out; a failed save is made again; a save of this very step is made or
reported as missed; no two saves in a row are dropped; the ranks leave the newest step that they have time for; no
process stays behind; and from every world the end can be reached without a further fault.

Larger worlds, with more faults, are behind --chaos.
"""

from __future__ import annotations

from itertools import combinations

import pytest

from perdure.checkpoint.background.events import Wish
from tests.unit.runtime.checkpoint.background.explore import explore
from tests.unit.runtime.checkpoint.background.planted import PLANTED
from tests.unit.runtime.checkpoint.background.small import Setting

Faults = dict[str, int]

ALL = tuple(Wish)
ONE_FAULT: list[Faults] = [
    {"copy": 1}, {"fail": 1}, {"die": 1}, {"late": 1}, {"refuse": 1}, {"lost": 1}, {"stream": 1}, {"fence": 1},
]  # fmt: skip
"""A fault that may happen need not: what happens without any is among this."""
ALONE: list[Faults] = [
    {"die": 2}, {"freeze": 1, "stuck": 1}, {"fail": 1, "stuck": 1}, {"lost": 1, "late": 1}, {"freeze": 1, "stream": 1},
    {"copy": 1, "refuse": 1}, {"change": 1, "copy": 1}, {"lost": 2}, {"death": 1, "lost": 1}, {"fence": 1, "lost": 1},
]  # fmt: skip
"""For a world of one, where two faults are affordable."""


rounds = pytest.mark.parametrize("rounds", [3, pytest.param(4, marks=pytest.mark.chaos)])


def name(faults: Faults) -> str:
    return "+".join(f"{fault}{count if count > 1 else ''}" for fault, count in faults.items())


def holds(setting: Setting) -> frozenset[str]:
    """The logs that all this leads to."""
    found = explore(setting)
    assert not found.broken, str(found)
    assert found.whole
    return found.logs


@pytest.mark.parametrize("faults", [*ONE_FAULT, {"change": 1}], ids=name)
def test_saves_while_training_goes_on(faults: Faults) -> None:
    assert {"oC", "ocS"} <= holds(Setting(faults, rounds=3 if faults.keys() & {"change", "die", "late", "fail"} else 4))


def test_an_uploader_that_stands_still_costs_one_save() -> None:
    assert {"oC", "ocS"} <= holds(Setting({"freeze": 1}, rounds=3))


@pytest.mark.parametrize("faults", [{"stream": 1}, {"lost": 1}, {"copy": 1}], ids=name)
def test_the_ranks_leave_with_any_time(faults: Faults) -> None:
    assert {"oS", "ox", "oC"} <= holds(Setting(faults, rounds=3, terms=1))


@pytest.mark.parametrize("faults", [{"stream": 1}, {"freeze": 1}], ids=name)
def test_the_ranks_leave_in_a_hurry(faults: Faults) -> None:
    assert {"oS", "ox"} <= holds(Setting(faults, 1 if "freeze" in faults else 2, rounds=3, terms=1, hurries=True))


@rounds
def test_a_script_ends_without_a_goal(rounds: int) -> None:
    assert {"o", "oc"} <= holds(Setting(rounds=rounds, terms=1, breaks=True))


def test_a_hand_over_at_any_point() -> None:
    assert {"ocoS", "ooC"} <= holds(Setting(rounds=4, offers=1, runs=2))


def test_a_hand_over_while_an_append_has_no_answer() -> None:
    assert {"ocoS", "ooC"} <= holds(Setting({"lost": 1}, 1, rounds=4, offers=1, runs=2))


@rounds
def test_a_hand_over_after_a_save_that_was_dropped_waits_for_the_next_one(rounds: int) -> None:
    assert "ooS" in holds(Setting(rounds=rounds, offers=1, runs=2, dropped=True))


@rounds
def test_a_run_dies_at_any_point(rounds: int) -> None:
    assert {"ooC", "ocoS"} <= holds(Setting({"death": 1}, rounds=rounds, runs=2))


def test_a_save_of_this_very_step_is_made_or_reported_as_missed() -> None:
    assert {"occS", "ocsS"} <= holds(Setting({"stream": 1}, rounds=4, wishes=ALL, firm=1))


def test_also_in_a_world_of_three() -> None:
    assert {"oC", "ocS"} <= holds(Setting(world=3, rounds=3))


@pytest.mark.parametrize("faults", ALONE, ids=name)
def test_also_with_two_faults_in_a_world_of_one(faults: Faults) -> None:
    runs = 2 if "death" in faults else 1
    assert "oS" in holds(Setting(faults, world=1, rounds=3, runs=runs, terms=1))
    assert "oS" in holds(Setting(faults, world=1, rounds=3, runs=runs, wishes=ALL, firm=1))


def test_saves_stream_where_one_rank_has_no_room() -> None:
    assert holds(Setting(rounds=3, wishes=ALL, firm=1, roomless=frozenset({1}))) == {"oS", "osS", "ossS", "osssS"}


@pytest.mark.parametrize("rule", PLANTED, ids=lambda rule: rule.replace(" ", "-"))
def test_without_a_rule_a_law_breaks(rule: str) -> None:
    planted = PLANTED[rule]
    found = explore(planted.setting, at_most=200_000)
    assert found.broken, f"{rule}: {found}"
    assert found.broken.startswith(planted.law), f"{rule}: {found}"


@pytest.mark.chaos
@pytest.mark.parametrize("shape", ["saves", "firm", "leaves", "hand-over", "three"])
@pytest.mark.parametrize(
    "pair",
    list(combinations(("copy", "fail", "die", "freeze", "late", "stuck", "refuse", "lost", "stream"), 2)),
    ids="+".join,
)
def test_larger_worlds(shape: str, pair: tuple[str, str]) -> None:
    faults = dict.fromkeys(pair, 1)
    settings = {
        "saves": Setting(faults, rounds=5),
        "firm": Setting(faults, rounds=4, wishes=ALL, firm=1),
        "leaves": Setting(faults, rounds=4, terms=1, breaks=True),
        "hand-over": Setting(faults, rounds=5, offers=1, runs=2, terms=1),
        "three": Setting(faults, world=3, rounds=4),
    }
    found = explore(settings[shape], at_most=1_000_000)
    assert not found.broken, str(found)
