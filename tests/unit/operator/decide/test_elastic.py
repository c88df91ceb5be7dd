"""A job with `elastic` has one of its sizes, whatever number is requested."""

from __future__ import annotations

from perdure.wire import ExitKind
from perdure_operator.api.reasons import ConditionType
from perdure_operator.api.spec import Elastic, SizePolicy
from perdure_operator.state.snapshot import NodeView
from tests.support.jobs import PATIENT, Job, creates, job, killed

SIZES = Elastic(min_replicas=2, max_replicas=8, sizes=(2, 4, 8))


def _job(elastic: Elastic | None = SIZES) -> Job:
    nodes = tuple(NodeView(name=f"n{number + 1}") for number in range(8))
    return job(disruption=PATIENT, elastic=elastic).having(nodes=nodes)


def _sized(here: Job) -> tuple[str, str]:
    condition = here.condition(ConditionType.SIZED)
    return condition.reason, condition.message


class TestTheWantedSize:
    def test_a_job_begins_with_the_largest_size_that_is_not_above_replicas(self) -> None:
        here = _job().running(world=7)
        assert len(here.members) == 4
        why = "spec.replicas is 7, and 4 is the largest of elastic.sizes that is not above it"
        assert _sized(here) == ("WantedSize", f"4 members: {why}")

    def test_fewer_replicas_than_the_smallest_size_are_as_many_as_that(self) -> None:
        assert len(_job().running(world=1).members) == 2

    def test_a_scale_that_comes_to_the_same_size_changes_nothing(self) -> None:
        here = _job().running(world=4).spec(replicas=6).settle()
        assert here.intent is None
        assert here.after(2).settle().now.run == 1

    def test_a_scale_to_another_size_is_a_change_of_size(self) -> None:
        here = _job().running(world=4).spec(replicas=8).settle()
        assert len(creates(here.after(2).plan())) == 4
        assert _sized(here) == ("OtherSize", "4 members, 8 are wanted: spec.replicas is 8")

    def test_a_run_that_comes_into_a_pool_keeps_its_size_until_it_is_given_one(self) -> None:
        shares = SIZES.model_copy(update={"policy": SizePolicy.GOODPUT})
        here = _job().running(world=4).spec(elastic=shares).settle()
        assert here.intent is None
        assert _sized(here)[0] == "WantedSize"
        here = here.spec(elastic=shares.model_copy(update={"max_replicas": 3})).settle()
        assert here.intent is not None
        assert here.intent.cause == "2 members are wanted"

    def test_a_job_without_sizes_never_says_anything_of_them(self) -> None:
        here = _job(elastic=None).running(world=3)
        assert len(here.members) == 3
        assert here.now.find(ConditionType.SIZED) is None

    def test_elastic_that_is_removed_leaves_the_size_of_replicas(self) -> None:
        here = _job().running(world=3).spec(elastic=None).settle().after(2).settle()
        assert _sized(here)[0] == "OtherSize"
        here = here.ready().settle()
        assert _sized(here)[0] == "FixedSize"
        offered = here.now.next
        assert offered is not None
        assert offered.plan is not None
        assert len(offered.plan.members) == 3


class TestTheGlobalBatch:
    """Of 12 samples five ranks would have three and two: sizes are those that divide it."""

    EVEN = Elastic(min_replicas=2, max_replicas=8, global_batch_size=12)

    def test_a_job_begins_with_the_largest_number_that_divides_it(self) -> None:
        here = _job(self.EVEN).running(world=8)
        assert len(here.members) == 6
        assert "6 is the largest number that divides elastic.globalBatchSize 12" in _sized(here)[1]

    def test_who_is_left_goes_on_with_equal_shares(self) -> None:
        here = _job(self.EVEN).running(world=6).ended(1, ExitKind.FAILED, error=killed()).settle().after(2).settle()
        assert len(here.members) == 4

    def test_processes_count_and_not_members(self) -> None:
        assert len(_job(self.EVEN).spec(processes_per_replica=2).running(world=8).members) == 6
        assert len(_job(self.EVEN).spec(processes_per_replica=4).running(world=8).members) == 3

    def test_one_that_a_living_run_does_not_divide_is_a_change_of_size(self) -> None:
        every = Elastic(min_replicas=2, max_replicas=8)
        here = _job(every).running(world=5).spec(elastic=self.EVEN).settle().after(2).settle()
        assert here.now.next is not None
        assert here.now.next.plan is not None
        assert len(here.now.next.plan.members) == 4
