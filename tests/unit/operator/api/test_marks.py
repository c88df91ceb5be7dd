"""What pods tell autoscalers of nodes: by the job's mode and the pod's role, in pods that live too."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.wire import Role
from perdure_operator.api.marks import marks
from perdure_operator.api.spec import Autoscaler
from perdure_operator.state.decision import CreatePod, Mark
from tests.support.jobs import PATIENT, Job, creates, job

SAFE = "cluster-autoscaler.kubernetes.io/safe-to-evict"
KARPENTER = "karpenter.sh/do-not-disrupt"

LEFT_ALONE = {SAFE: "false", KARPENTER: "true"}
MAY_GO = {SAFE: "true"}


def _mode(word: str | None) -> dict[str, Any]:
    return {"disruption": PATIENT.model_copy(update={"autoscaler": Autoscaler(word) if word else None})}


def _told(here: Job, *names: str) -> list[dict[str, str]]:
    """What the annotations of these pods say to autoscalers, without the operator's own."""
    pods = [pod for pod in here.snapshot.pods if not names or pod.name in names]
    return [{key: value for key, value in pod.marks.items() if not key.startswith("perdure.dev/")} for pod in pods]


def _marks(here: Job) -> list[str]:
    return [action.name for action in here.plan().actions if isinstance(action, Mark)]


@pytest.mark.parametrize(
    ("mode", "role", "told"),
    [
        (None, Role.STANDBY, {}),
        (None, Role.MEMBER, {}),
        (Autoscaler.NEVER, Role.STANDBY, LEFT_ALONE),
        (Autoscaler.NEVER, Role.MEMBER, LEFT_ALONE),
        (Autoscaler.NEVER, Role.FORMER, {}),
        (Autoscaler.COOPERATIVE, Role.STANDBY, LEFT_ALONE),
        (Autoscaler.COOPERATIVE, Role.MEMBER, MAY_GO),
        (Autoscaler.COOPERATIVE, Role.FORMER, {}),
    ],
)
def test_a_pod_says_what_its_job_and_its_role_say(mode: Autoscaler | None, role: Role, told: dict[str, str]) -> None:
    assert {key: value for key, value in marks(mode, role).items() if key in (SAFE, KARPENTER)} == told


class TestALivingPod:
    @pytest.mark.parametrize(("mode", "told"), [("Never", LEFT_ALONE), ("Cooperative", MAY_GO)])
    def test_gets_the_annotation_again_when_the_field_changes(self, mode: str, told: dict[str, str]) -> None:
        here = job().running(world=2).spec(**_mode(mode)).settle()
        assert _told(here) == [told, told]
        assert here.now.run == 1

    def test_loses_what_it_was_given_when_the_field_goes(self) -> None:
        here = job(**_mode("Never")).running(world=2).spec(**_mode(None)).settle()
        assert [pod.marks for pod in here.snapshot.pods] == [{}, {}]

    def test_keeps_what_the_operator_has_not_given_it(self) -> None:
        here = job().running(world=2).pod(0, marks={SAFE: "false"})
        assert _marks(here) == []

    def test_gets_it_back_when_it_is_removed(self) -> None:
        here = job(**_mode("Never")).running(world=2).pod(0, marks={}).settle()
        assert _told(here) == [LEFT_ALONE, LEFT_ALONE]

    def test_of_a_job_that_says_nothing_gets_no_annotation(self) -> None:
        here = job().running(world=2)
        assert _told(here) == [{}, {}]
        assert not [action for decision in here.history for action in decision.actions if isinstance(action, Mark)]

    def test_that_has_ended_or_is_going_is_let_be(self) -> None:
        here = job().running(world=2).spec(**_mode("Never"))
        assert here.name(0) not in _marks(here.deleted(0))
        assert here.name(0) not in _marks(here.exited(0))


class TestANewMember:
    def test_of_a_cooperative_job_is_left_alone_until_it_trains(self) -> None:
        here = job(**_mode("Cooperative")).starting(2)
        assert _told(here) == [LEFT_ALONE, LEFT_ALONE]
        assert _told(here.ready().settle()) == [MAY_GO, MAY_GO]

    def test_is_promoted_and_annotated_in_one_round(self) -> None:
        here = job(**_mode("Cooperative")).starting(2).ready()
        while not here.run_plan:
            here = here.step()
        assert _told(here) == [MAY_GO, MAY_GO]

    def test_that_replaces_another_is_left_alone_beside_members_that_may_go(self) -> None:
        here = job(**_mode("Cooperative")).running(world=2).leaving("n1")
        standby = next(iter(here.now.next.members if here.now.next else ()))
        assert _told(here, standby) == [LEFT_ALONE]
        assert _told(here, here.name(0), here.name(1)) == [MAY_GO, MAY_GO]

    def test_that_stays_as_a_former_to_keep_others_off_holds_no_node(self) -> None:
        here = job(**_mode("Never")).starting(2).node("n1", deleting=True)
        kept_off = here.step()
        former = [pod for pod in kept_off.snapshot.pods if pod.role == Role.FORMER]
        assert [pod.marks for pod in former] == [{}]
        assert creates(kept_off.history[-1])

    def test_that_starts_is_not_replaced_when_the_field_changes(self) -> None:
        here = job().starting(2).spec(**_mode("Never"))
        changed = here.settle()
        assert changed.names() == here.names()
        assert not [action for action in here.plan().actions if isinstance(action, CreatePod)]
        assert _told(changed) == [LEFT_ALONE, LEFT_ALONE]


class TestClusterAutoscaler:
    """It taints the node of a pod that says `true` although the budget blocks, and gives up after two minutes."""

    TAINT = "ToBeDeletedByClusterAutoscaler"

    def _tainted(self) -> Job:
        patience = PATIENT.model_copy(update={"autoscaler": Autoscaler.COOPERATIVE, "replacement_timeout_seconds": 600})
        here = job(disruption=patience).running(world=2)
        assert _told(here, here.name(0)) == [MAY_GO]
        return here.taint("n1", self.TAINT).settle().after(1).settle()

    def test_gets_the_node_when_a_replacement_is_there(self) -> None:
        here = self._tainted().ready().settle()
        plan = here.now.next.plan if here.now.next else None
        assert plan is not None
        assert sorted(member.node for member in plan.members) == ["n2", "n3"]

    def test_that_gives_up_before_leaves_the_run_as_it_was(self) -> None:
        here = self._tainted().after(120)
        here = here.node("n1", taints=()).settle()
        assert here.now.run == 1
        assert here.intent is None
        assert _told(here, *here.members) == [MAY_GO, MAY_GO]
