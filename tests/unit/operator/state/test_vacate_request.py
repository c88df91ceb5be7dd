"""A person moves a job's members by an annotation of the job: those on some nodes, some of them, or all there are."""

from __future__ import annotations

import pytest

from perdure.wire import ExitKind, Train
from perdure_operator.api.reasons import ConditionType
from perdure_operator.decide.signals import avoided
from perdure_operator.state.snapshot import NodeView
from perdure_operator.state.vacate_request import moves_all, named
from tests.support.jobs import Job, creates, deletes, job, leaves, trains

SIX = tuple(NodeView(name=f"n{number}") for number in range(1, 7))


def training(**spec: object) -> Job:
    """Two members on n1 and n2, for whom standbys are awaited."""
    return job(disruption={}, **spec).having(nodes=SIX).running(world=2)


def cause(here: Job) -> str:
    return here.intent.cause if here.intent else ""


def standbys(here: Job) -> Job:
    """The quiet second is over, and new members are Ready."""
    return here.settle().after(1).settle().ready()


class TestNodes:
    def test_members_leave_the_nodes_it_names_and_no_others(self) -> None:
        here = training().having(vacate="n1").settle()
        assert here.intent is not None
        assert here.intent.nodes == ("n1",)
        assert here.intent.cause == "the job's annotation perdure.dev/vacate names node n1"
        moved = standbys(here).plan()
        assert (set(leaves(moved)), set(trains(moved))) == ({"digits-ab12-0"}, {"digits-ab12-1", "digits-ab12-2"})

    def test_no_new_member_trains_there_as_long_as_it_is_named(self) -> None:
        here = training().having(vacate="n1").settle().after(1).settle()
        here = here.pod(2, node="n1").ready().settle()
        assert here.now.run == 1
        assert here.names() == ["0", "1", "2", "3"]
        roles = {pod.name: pod.role for pod in here.snapshot.pods}
        assert roles["digits-ab12-2"] == "former"  # keeps its successors off n1

    def test_once_they_have_left_nothing_more_is_asked(self) -> None:
        here = standbys(training().having(vacate="n1,n9")).settle()
        for _ in range(3):
            here = here.after(600).settle()
        assert here.intent is None
        assert creates(here.plan()) == []


class TestPods:
    def test_a_member_that_it_names_leaves_and_its_node_may_have_its_successor(self) -> None:
        here = training().having(vacate="digits-ab12-1").settle()
        assert here.intent is not None
        assert here.intent.nodes == ()
        assert here.intent.cause == "the job's annotation perdure.dev/vacate names digits-ab12-1"
        here = here.after(1).settle().pod(2, node="n2").ready().settle()
        assert here.now.run == 2
        told = {name: here.assignment(name) for name in ("digits-ab12-0", "digits-ab12-2")}
        assert all(isinstance(said, Train) and said.run == 2 for said in told.values())

    def test_of_nodes_and_pods_in_one_list_all_cost_one_move(self) -> None:
        here = training().having(vacate="n1, digits-ab12-1").settle()
        assert cause(here).count("annotation") == 2
        moved = standbys(here).plan()
        assert set(leaves(moved)) == {"digits-ab12-0", "digits-ab12-1"}


class TestAll:
    def test_everybody_leaves_and_the_run_trains_on_meanwhile(self) -> None:
        here = training().having(vacate="true").settle()
        assert cause(here) == "the job has the annotation perdure.dev/vacate"
        here = here.after(1).settle()
        assert leaves(here.plan()) == {}
        assert here.names() == ["0", "1", "2", "3"]
        moved = here.ready().plan()
        assert set(leaves(moved)) == {"digits-ab12-0", "digits-ab12-1"}
        assert set(trains(moved)) == {"digits-ab12-2", "digits-ab12-3"}

    def test_those_made_since_stay(self) -> None:
        here = job().having(nodes=SIX).running(world=2).having(vacate="true").settle().after(1).settle()
        for member in (0, 1):
            here = here.ended(member, ExitKind.CHECKPOINTED, step=20, commit=(4, 20))
        here = here.settle().after(1).settle().ready().settle().after(600).settle()
        assert here.intent is None
        assert here.members == ("digits-ab12-2", "digits-ab12-3")
        assert (creates(here.plan()), deletes(here.plan())) == ([], [])

    def test_for_another_time_it_is_taken_away_first(self) -> None:
        here = training().having(vacate="true").settle().having(vacate="").settle()
        assert (here.intent, here.now.vacate) == (None, None)
        assert here.now.withdrawals is not None
        assert cause(here.having(vacate="true").settle()) != ""

    def test_a_job_that_comes_with_it_starts_as_any_other(self) -> None:
        here = job().having(vacate="true").running(world=2)
        assert (here.intent, here.now.run) == (None, 1)

    def test_a_finished_job_is_left_alone(self) -> None:
        here = job().running(world=2).all_ended(ExitKind.COMPLETED, step=20, commit=(4, 20)).settle()
        assert here.having(vacate="true").plan().status is None


class TestWithdrawal:
    @pytest.mark.parametrize("before", ["n1", "digits-ab12-0", "true"])
    @pytest.mark.parametrize("after", ["", "false", "n5"])
    def test_a_request_withdrawn_in_time_moves_no_member(self, before: str, after: str) -> None:
        here = training().having(vacate=before).settle().after(1).settle().having(vacate=after).settle()
        assert (here.intent, here.now.run) == (None, 1)
        assert here.condition(ConditionType.DISRUPTED).status == "False"
        assert all(pod.deleting for pod in here.snapshot.pods if pod.name not in ("digits-ab12-0", "digits-ab12-1"))

    def test_once_members_have_their_ranks_the_move_is_finished(self) -> None:
        here = job().running(world=2).having(vacate="n1").settle().after(1).settle().having(vacate="").settle()
        assert here.intent is not None
        assert here.intent.leave


class TestReaction:
    def test_a_job_may_have_it_as_a_wish(self) -> None:
        here = job(disruption={"signals": {"vacate-job": "VacateIfRoom"}}).having(nodes=SIX).running(world=2)
        here = here.having(vacate="n1").settle().after(1).settle()
        assert here.intent is not None
        assert here.intent.ready_by is None

    def test_a_job_may_take_it_for_a_node_to_be_avoided(self) -> None:
        here = job(disruption={"signals": {"vacate-job": "Avoid"}}).having(nodes=SIX).running(world=2)
        here = here.having(vacate="n1,n3").settle()
        assert here.intent is None  # who trains there stays
        new = here.snapshot.pods[0].model_copy(update={"name": "digits-ab12-9", "node": "n3"})
        (node,) = (node for node in here.snapshot.nodes if node.name == "n3")
        said = avoided(here.snapshot, node, new)
        assert said is not None
        assert said.cause == "the job's annotation perdure.dev/vacate names node n3"

    def test_a_job_may_not_hear_of_it(self) -> None:
        here = job(disruption={"signals": {"vacate-job": "Ignore"}}).running(world=2).having(vacate="true")
        assert here.settle().intent is None

    def test_a_job_that_is_being_deleted_needs_no_move(self) -> None:
        assert job().running(world=2).having(deleting=True, vacate="true").settle().after(5).settle().intent is None


@pytest.mark.parametrize(
    ("text", "everybody", "names"),
    [
        ("", False, ()),
        ("false", False, ()),
        (" True ", True, ()),
        ("n1", False, ("n1",)),
        ("n1,n2, n1", False, ("n1", "n2")),
        (" ,, ", False, ()),
        ("true,n1", False, ("true", "n1")),
    ],
)
def test_the_words_of_a_person(text: str, everybody: bool, names: tuple[str, ...]) -> None:
    assert (moves_all(text), named(text)) == (everybody, names)
