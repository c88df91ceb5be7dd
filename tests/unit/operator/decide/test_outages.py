"""Many nodes that are not Ready at once say something about the control plane, not about each of them."""

from __future__ import annotations

import pytest

from perdure.wire import ExitKind, Standby, write_assignment
from perdure_operator.api.reasons import ConditionType
from perdure_operator.state.snapshot import PodView, Zone
from tests.support.jobs import Job, job

STANDBY = write_assignment(Standby())
ALL_DOWN = (Zone(name="", ready=0, not_ready=3),)
ALL_UP = (Zone(name="", ready=3, not_ready=0),)


def _down(here: Job, *zones: Zone) -> Job:
    for name in ("n1", "n2", "n3"):
        here = here.node(name, ready=False)
    return here.having(zones=zones).settle()


@pytest.mark.parametrize("owner", ["somebody-else", ""])
def test_the_node_of_a_foreign_pod_with_the_jobs_label_is_not_watched(owner: str) -> None:
    """A Deployment with the label, for a NetworkPolicy, would fill status, and put off what is given up of the job."""
    here = job().running(world=2)
    foreign = PodView(name="web-7f9c-x2x", uid="w", owner_uid=owner, node="n3", phase="Running")
    here = here.having(pods=(*here.snapshot.pods, foreign)).node("n3", ready=False).node("n1", ready=False).settle()
    assert [one.node for one in here.now.unready] == ["n1"]


def test_the_node_of_a_pod_of_an_earlier_job_of_this_name_is_watched() -> None:
    earlier = PodView(name="digits-0000-0", uid="old", owner_uid="0000", node="n3", phase="Running", assignment=STANDBY)
    here = job().having(pods=(earlier,)).node("n3", ready=False).settle()
    assert [one.node for one in here.now.unready] == ["n3"]


def test_no_member_is_given_up_while_no_node_is_ready() -> None:
    here = _down(job().running(world=2), *ALL_DOWN).after(3600).settle()
    assert here.outcomes == ()
    running = here.pod(0, ready=False).settle().condition(ConditionType.RUNNING)
    assert (running.status, running.reason) == ("False", "MassOutage")


@pytest.mark.parametrize(
    ("zone", "outage"),
    [
        (Zone(ready=2, not_ready=3), True),
        (Zone(ready=3, not_ready=3), False),  # less than 55 %
        (Zone(ready=1, not_ready=2), False),  # no more than two
    ],
    ids=["most", "half", "two"],
)
def test_a_zone_of_which_most_is_down_is_waited_for_longer(zone: Zone, outage: bool) -> None:
    here = _down(job().running(world=2), zone).after(60).settle()
    assert (here.now.failures.infrastructure == 0) is outage


def test_a_zone_that_is_down_beside_one_that_is_up_is_no_fault_of_the_control_plane() -> None:
    here = job().running(world=2).node("n1", zone="a")
    here = here.node("n1", ready=False).having(zones=(Zone(name="a", not_ready=9), Zone(name="b", ready=9))).settle()
    assert here.after(60).settle().outcomes != ()


def test_after_ten_minutes_members_are_given_up_one_node_after_the_other() -> None:
    most = Zone(ready=2, not_ready=3)
    here = _down(job().running(world=2), most).after(599).settle()
    assert here.outcomes == ()
    first = here.after(1).settle()
    assert [one.name for one in first.outcomes] == ["digits-ab12-0"]
    assert len(first.after(59).settle().outcomes) == 1
    assert first.after(60).settle().now.failures.infrastructure == 1


@pytest.mark.parametrize("before", [Zone(ready=2, not_ready=3), Zone(ready=0, not_ready=5)], ids=["leader", "node"])
def test_what_is_overdue_is_given_up_one_node_after_the_other_too(before: Zone) -> None:
    """No leader, or no Ready node, for half an hour: both members have long been due by then."""
    here = _down(job().running(world=2), before).after(1800).having(zones=(Zone(ready=2, not_ready=3),)).settle()
    assert [one.name for one in here.outcomes] == ["digits-ab12-0"]
    later = here.after(59).settle()
    assert [one.name for one in later.outcomes] == ["digits-ab12-0"]
    assert later.after(1).settle().now.failures.infrastructure == 1


def test_a_node_that_comes_back_after_it_was_given_up_does_not_make_the_next_one_due() -> None:
    most = Zone(ready=2, not_ready=3)
    here = _down(job().running(world=2), most).after(1800).settle()
    here = here.after(5).node("n1", ready=True).settle()
    assert [one.node for one in here.now.unready] == ["n2"]
    assert len(here.after(54).settle().outcomes) == 1
    assert here.after(55).settle().now.failures.infrastructure == 1


def test_while_no_node_is_ready_none_is_given_up_after_the_first_either() -> None:
    here = _down(job().running(world=2), Zone(ready=2, not_ready=3)).after(1800).settle()
    here = here.having(zones=ALL_DOWN).settle().after(1800).settle()
    assert [one.name for one in here.outcomes] == ["digits-ab12-0"]


def test_a_status_without_the_time_of_the_last_one_is_gone_on_from() -> None:
    """An operator that did not keep it has given the first node up; this one counts from its own first look."""
    here = _down(job().running(world=2), Zone(ready=2, not_ready=3)).after(1800).settle()
    rows = tuple(one.model_copy(update={"given_up": None}) for one in here.now.unready)
    here = here.status(unready=rows, given_up=None).settle()
    assert len(here.outcomes) == 1
    assert len(here.after(59).settle().outcomes) == 1
    assert here.after(60).settle().now.failures.infrastructure == 1


def test_a_node_that_stays_down_after_the_outage_counts_from_its_end() -> None:
    here = _down(job().running(world=2), *ALL_DOWN).after(500).node("n2", ready=True).node("n3", ready=True)
    here = here.having(zones=(Zone(ready=2, not_ready=1),)).settle().after(59).settle()
    assert here.outcomes == ()
    assert [one.name for one in here.after(1).settle().outcomes] == ["digits-ab12-0"]


def test_a_short_outage_leaves_nothing_behind() -> None:
    here = _down(job().running(world=2), *ALL_DOWN).after(120)
    for name in ("n1", "n2", "n3"):
        here = here.node(name, ready=True)
    here = here.having(zones=ALL_UP).settle()
    assert here.now.unready == ()
    assert here.all_ended(ExitKind.COMPLETED, step=9, commit=(2, 9)).settle().now.failures.infrastructure == 0
