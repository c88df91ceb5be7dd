"""The machines, all together, in every order of events that a small world has: what no test by example could show.

Each setting is a shape (who leaves, who comes), what may go wrong and how often, and whether time may pass early. Its
whole world is walked through; the laws are H1 to H10 of the design, "every party knows in bounded time" among them.
Larger worlds, with more faults, are behind --chaos. Each run also takes out each rule that a law rests on, and the law
breaks.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from tests.support.covering import covering
from tests.unit.runtime.live.explore import explore
from tests.unit.runtime.live.planted import (
    FIRST_GROWN,
    GROWN_BY_TWO,
    ONE_COMES_FOR_TWO,
    ONE_OF_THREE_REPLACED,
    ONE_REPLACED,
    PLANTED,
    REPLACED_BY_TWO,
    SHAPES,
    SHRUNK_TO_ONE,
    SHRUNK_TO_ONE_POD,
)
from tests.unit.runtime.live.small import Setting

Faults = dict[str, int]

NOTHING: Faults = {}
ONCE: list[Faults] = [
    NOTHING, {"commit": 1}, {"flip": 1, "commit": 1}, {"down": 1, "flip": 1}, {"kill": 1}, {"cut": 1}, {"reduce": 1},
    {"unable": 1, "ack": 1}, {"sigterm": 1}, {"goal": 1}, {"freeze": 1}, {"plan": 1}, {"kill": 2}, {"doubt": 1},
]  # fmt: skip
"""With these nothing takes long: time passes only where nothing else happens."""
IN_AN_ACT: list[Faults] = [
    {"freeze": 1, "sigterm": 1}, {"freeze": 1, "ack": 1}, {"kill": 1, "sigterm": 1}, {"kill": 1, "ack": 1},
    {"freeze": 1, "commit": 1},
]  # fmt: skip
"""A party dies or stands still, and a pod is asked to end, an acknowledgement is lost, a save is under way."""
CONNECTING: list[Faults] = [
    NOTHING, {"kill": 1}, {"freeze": 1}, {"unable": 1}, {"sigterm": 1}, {"goal": 1}, {"obstacle": 1}, {"obstacle": 2},
    {"obstacle": 1, "sigterm": 1}, {"obstacle": 1, "goal": 1}, {"obstacle": 1, "kill": 1},
]  # fmt: skip
"""What may go wrong where the parties have yet to connect."""
HURRIED: list[tuple[str, Faults]] = [
    ("rank-0-leaves", NOTHING), ("1-to-2", {"cut": 1}), ("2-to-3", {"reduce": 1}), ("2-to-3", {"unable": 1}),
    ("1-to-1", {"unable": 1}), ("1-to-1", {"kill": 1}),
]  # fmt: skip
"""In these the limit may pass, for each party by itself, at any moment. A fault that may happen need not."""
HURRIED_LONG: list[tuple[str, Faults]] = [
    ("2-to-3", {"cut": 1}), ("rank-1-leaves", {"unable": 1}), ("2-to-3", {"kill": 1}),
]  # fmt: skip
LONGER = pytest.mark.chaos

ALONE = {"1-to-1": ONE_REPLACED, "1-to-2": FIRST_GROWN, "2-to-1": SHRUNK_TO_ONE, "1-for-2": ONE_COMES_FOR_TWO}
ALONE |= {"3-to-a-pod": SHRUNK_TO_ONE_POD}
TWO_COME = {"1-to-3": GROWN_BY_TWO, "1-to-2-replaced": REPLACED_BY_TWO}
EVERY = {**SHAPES, **ALONE, **TWO_COME, "1-of-3": ONE_OF_THREE_REPLACED}


def name(faults: Faults) -> str:
    return "+".join(f"{fault}{count if count > 1 else ''}" for fault, count in faults.items()) or "nothing"


def called(value: str | Faults) -> str:
    """For a case: the shape, or what may go wrong."""
    return value if isinstance(value, str) else name(value)


def some(*faults: Faults, long: tuple[Faults, ...]) -> list[Any]:
    """For parametrize; those whose world is `long` are left to `make chaos`."""
    every_run = [pytest.param(one, id=name(one)) for one in faults]
    return [*every_run, *(pytest.param(one, marks=LONGER, id=name(one)) for one in long)]


def holds(shape: str, faults: Faults, late: int, *, connecting: bool = False) -> frozenset[str]:
    """The logs that all this leads to."""
    found = explore(Setting(EVERY[shape], faults, late, connecting=connecting))
    assert not found.broken, str(found)
    assert found.whole
    return found.log


@pytest.mark.parametrize("faults", ONCE, ids=name)
@pytest.mark.parametrize("shape", ["rank-1-leaves", "rank-0-leaves", "2-to-3", "1-to-1", "1-to-2"])
def test_every_party_learns_the_same_in_time_or_is_safe(shape: str, faults: Faults) -> None:
    logs = holds(shape, faults, late=0)
    assert any("h" in log for log in logs)


@pytest.mark.parametrize("faults", [{"kill": 1}, {"freeze": 1}, {"cut": 1}, {"reduce": 1}, {"flip": 1}], ids=name)
@pytest.mark.parametrize("shape", ["2-to-1", "1-for-2"])
def test_also_where_one_is_left(shape: str, faults: Faults) -> None:
    assert any("h" in log for log in holds(shape, faults, late=0))


@pytest.mark.parametrize("faults", some({"kill": 1}, {"reduce": 1}, {"flip": 1}, long=({"freeze": 1}, {"cut": 1})))
def test_also_where_one_pod_is_left(faults: Faults) -> None:
    assert any("h" in log for log in holds("3-to-a-pod", faults, late=0))


@pytest.mark.parametrize(
    "faults",
    some(*(one for one in ONCE[:10] if "cut" not in one), {"kill": 2}, long=({"cut": 1}, {"freeze": 1})),
)
def test_also_with_three_old_ranks(faults: Faults) -> None:
    assert any("h" in log for log in holds("3-to-2", faults, late=0))


@pytest.mark.parametrize("faults", CONNECTING, ids=name)
@pytest.mark.parametrize("shape", ["rank-1-leaves", "2-to-3", "1-to-2-replaced"])
def test_no_old_rank_stops_before_every_party_is_connected(shape: str, faults: Faults) -> None:
    assert any("h" in log for log in holds(shape, faults, late=0, connecting=True))


@pytest.mark.parametrize("faults", some(NOTHING, long=({"kill": 1},)))
def test_also_where_all_leave_of_whom_none_connects_the_newer_run(faults: Faults) -> None:
    assert any("h" in log for log in holds("all-leave", faults, late=0, connecting=True))


@pytest.mark.parametrize("faults", some({"kill": 1}, long=({"freeze": 1},)))
def test_also_with_three_old_ranks_of_which_one_is_replaced(faults: Faults) -> None:
    assert any("h" in log for log in holds("1-of-3", faults, late=0))


@pytest.mark.parametrize("faults", [{"kill": 1}, {"freeze": 1}, {"cut": 1}, {"doubt": 1}], ids=name)
@pytest.mark.parametrize("shape", TWO_COME)
def test_also_where_two_come(shape: str, faults: Faults) -> None:
    assert any("h" in log for log in holds(shape, faults, late=0))


@pytest.mark.parametrize(("shape", "faults"), covering(["rank-1-leaves", "1-to-3"], IN_AN_ACT), ids=called)
def test_also_where_something_else_happens_meanwhile(shape: str, faults: Faults) -> None:
    assert any("h" in log for log in holds(shape, faults, late=0))


@pytest.mark.parametrize("shape", ["rank-1-leaves", "2-to-3", "1-to-3", "3-to-2"])
def test_a_short_standstill_costs_no_rank_a_step(shape: str) -> None:
    found = explore(Setting(EVERY[shape], {"freeze": 1}, late=0, without=frozenset({"lost"})))
    assert not found.broken, str(found)
    assert found.whole


@pytest.mark.parametrize(
    "faults",
    some(*(one for one in ONCE[:10] if not one.keys() & {"cut", "ack"}), long=({"cut": 1}, {"unable": 1, "ack": 1})),
)
def test_also_where_no_member_stays(faults: Faults) -> None:
    assert any("h" in log for log in holds("all-leave", faults, late=0))


@pytest.mark.parametrize(
    ("shape", "faults"),
    [*HURRIED, *(pytest.param(*one, marks=LONGER) for one in HURRIED_LONG)],
    ids=[f"{shape}-{name(faults)}" for shape, faults in (*HURRIED, *HURRIED_LONG)],
)
def test_also_when_time_passes_for_each_party_by_itself(shape: str, faults: Faults) -> None:
    logs = holds(shape, faults, late=2)
    assert {"oh", "or"} <= logs


def test_an_older_run_that_cannot_change_live_ends_for_its_newcomers_however_late_it_can() -> None:
    assert {"of", "oF"} <= holds("2-to-3", {"obstacle": 2}, late=2, connecting=True)


def test_an_undisturbed_attempt_has_one_end() -> None:
    for shape in SHAPES:
        assert holds(shape, NOTHING, late=0) == {"o", "oh"}


@pytest.mark.parametrize("rule", PLANTED, ids=lambda rule: rule.replace(" ", "-"))
def test_without_a_rule_a_law_breaks(rule: str) -> None:
    planted = PLANTED[rule]
    found = explore(planted.setting(), first_only=True)
    assert any(law.startswith(planted.law) for law in found.broken), f"{rule}: {found}"


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("shape", "faults"),
    list(
        product(
            EVERY,
            [*ONCE, *IN_AN_ACT, {"kill": 1, "plan": 1}, {"freeze": 1, "plan": 1}, {"kill": 2, "cut": 1, "flip": 1}],
        )
    ),
    ids=called,
)
def test_larger_worlds(shape: str, faults: Faults) -> None:
    found = explore(Setting(EVERY[shape], faults, late=2), at_most=2_000_000)
    assert not found.broken, str(found)
