"""Who makes a run larger has a PriorityClass of its own; who begins one or replaces a member has the template's."""

from __future__ import annotations

from typing import Any

from perdure.wire import ExitKind
from perdure_operator.api.reasons import ConditionType
from perdure_operator.api.spec import Elastic
from perdure_operator.api.status import LiveRefused
from perdure_operator.decide.sizing import SETTLING_SECONDS
from perdure_operator.decide.standby_pool import BEGINNING_SECONDS
from perdure_operator.state.snapshot import NodeView
from tests.support.jobs import PATIENT, Job, job, killed

AFTER, JOINER = 10, "perdure-joiner"


def _job(replicas: int, **fields: Any) -> Job:
    """Its script cannot go over alive, so that a plan is at once that of the run."""
    given = {"min_replicas": 1, "max_replicas": 8, "grow_after_seconds": AFTER, "joiner_priority_class_name": JOINER}
    here = job(replicas=replicas, disruption=PATIENT, elastic=Elastic(**{**given, **fields}))
    here = here.having(nodes=tuple(NodeView(name=f"n{number + 1}") for number in range(8)))
    return here.status(live_refused=LiveRefused(template="t1", why="its model is sharded"))


def _grows(**fields: Any) -> Job:
    """A run of two, and two are awaited."""
    return _job(2, **fields).running(2).after(SETTLING_SECONDS).spec(replicas=4).settle().after(1).settle()


def _classes(here: Job) -> dict[str, str]:
    """Of the pods that live, by their numbers."""
    return {pod.name.rpartition("-")[2]: pod.priority_class for pod in here.living() if not pod.deleting}


def test_the_first_members_have_the_class_of_the_template() -> None:
    assert set(_classes(_job(4).starting(4)).values()) == {""}


def test_who_makes_the_run_larger_has_the_class_for_that() -> None:
    assert _classes(_grows()) == {"0": "", "1": "", "2": JOINER, "3": JOINER}


def test_without_such_a_class_all_have_that_of_the_template() -> None:
    assert set(_classes(_grows(joiner_priority_class_name=None)).values()) == {""}


def test_who_replaces_a_leaver_has_the_class_of_the_template() -> None:
    here = _job(2).running(2).leaving("n1")
    assert _classes(here) == {"0": "", "1": "", "2": ""}


def test_joiners_that_find_no_room_do_not_keep_a_replacement_from_having_the_templates() -> None:
    here = _grows().cordon("n2").settle().after(1).settle()
    assert _classes(here) == {"0": "", "1": "", "2": JOINER, "3": JOINER, "4": ""}


def _has_a_spare_without_room() -> Job:
    """Of a size that cannot get smaller."""
    sizes = {"min_replicas": 2, "max_replicas": 2, "spares": 1}
    here = _job(2, **sizes).running(2).after(BEGINNING_SECONDS).settle()
    return here.pod(2, node="", unschedulable="0/8 nodes are available").settle()


def test_a_spare_without_room_does_not_keep_a_replacement_from_having_the_templates() -> None:
    """Its priority may get it room, while the spare would wait forever."""
    here = _has_a_spare_without_room()
    assert _classes(here) == {"0": "", "1": "", "2": JOINER}
    here = here.cordon("n2").settle().after(1).settle()
    assert _classes(here) == {"0": "", "1": "", "3": ""}


def test_nor_members_of_a_run_that_starts_over() -> None:
    here = _has_a_spare_without_room()
    for number in (0, 1):
        here = here.ended(number, ExitKind.FAILED, error=killed())
    here = here.settle().after(1).settle()
    assert _classes(here) == {"3": "", "4": ""}


def test_one_with_a_node_takes_the_place_whatever_its_class() -> None:
    here = _has_a_spare_without_room().pod(2, node="n3", unschedulable="").settle()
    here = here.cordon("n2").settle().after(1).settle()
    assert _classes(here) == {"0": "", "1": "", "2": JOINER}


def test_one_without_room_is_awaited_where_the_run_grows() -> None:
    here = _job(2, spares=1).running(2).after(SETTLING_SECONDS).settle()
    here = here.pod(2, node="", unschedulable="0/8 nodes are available").settle()
    here = here.spec(replicas=3).settle().after(1).settle()
    assert _classes(here) == {"0": "", "1": "", "2": JOINER}


def test_a_joiner_that_was_promoted_keeps_its_class_and_its_replacement_does_not_have_it() -> None:
    here = _grows().ready().settle()
    assert len(here.members) == 4
    assert _classes(here)["3"] == JOINER
    node = next(pod.node for pod in here.living() if pod.name == here.name(3))
    here = here.after(SETTLING_SECONDS).cordon(node).settle().after(1).settle()
    assert _classes(here)["4"] == ""


def test_a_run_that_starts_over_has_the_class_of_the_template_alone() -> None:
    here = _grows().spec(suspend=True).settle().all_ended(ExitKind.CHECKPOINTED, commit=(1, 5)).settle()
    here = here.spec(suspend=False).settle()
    assert list(_classes(here).values()) == [""] * 4


def test_regrowth_after_a_lost_member_takes_room_from_no_pod() -> None:
    here = _job(3).running(3).ended(1, ExitKind.FAILED, error=killed()).settle().after(2).settle()
    here = here.after(SETTLING_SECONDS).settle().after(1).settle()
    assert sorted(_classes(here).values()) == ["", "", JOINER]


class TestWhatIsTold:
    def _told(self, here: Job) -> str:
        return here.settle().condition(ConditionType.SIZED).message

    def _of_priority(self, here: Job, **fields: Any) -> Job:
        for pod in here.living():
            here = here.pod(pod.name, **fields)
        return here

    def test_a_template_that_preempts_is_named_with_the_remedy(self) -> None:
        here = _job(2, joiner_priority_class_name=None).running(2)
        here = self._of_priority(here, priority=1000, priority_class="high")
        told = self._told(here)
        assert "new members may preempt pods of others, by their priority (class high, 1000)" in told
        assert "set elastic.joinerPriorityClassName to a class with preemptionPolicy Never" in told

    def test_a_template_that_preempts_no_pod_is_not(self) -> None:
        for fields in ({"priority": 1000, "preemption_policy": "Never"}, {"priority": 0}):
            here = _job(2, joiner_priority_class_name=None).running(2)
            assert "preempt" not in self._told(self._of_priority(here, **fields))

    def test_beside_a_class_for_joiners_the_template_may_preempt(self) -> None:
        here = self._of_priority(_job(2).running(2), priority=1000, priority_class="high")
        assert "preempt" not in self._told(here)

    def test_a_class_for_joiners_that_preempts_is_named(self) -> None:
        here = _grows().pod(2, priority=5)
        assert f"(class {JOINER}, 5): name another class there" in self._told(here)

    def test_a_class_that_cluster_autoscaler_does_not_see_is_named(self) -> None:
        assert "cluster-autoscaler adds no node" not in self._told(_grows().pod(2, priority=-10))
        assert "cluster-autoscaler adds no node" in self._told(_grows().pod(2, priority=-11))
