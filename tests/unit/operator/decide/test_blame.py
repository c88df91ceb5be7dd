"""Whose fault it was, what it costs, when it is tried again, and when the job is given up."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.wire import ErrorKind, ExitKind, Rescue
from perdure_operator.api.reasons import ConditionType
from perdure_operator.api.spec import Elastic
from perdure_operator.api.status import Disruption, Failures, Phase
from perdure_operator.state.decision import CreatePod
from perdure_operator.state.snapshot import Terminated
from tests.support.jobs import PATIENT, Job, creates, job, killed, leaves, raised

STORAGE = (ErrorKind.STORAGE, "EndpointConnectionError", "no answer")


def _lost(first: ExitKind, **fields: object) -> Job:
    """Rank 1 ends so, rank 0 loses its peer."""
    here = job().running(world=2).ended(1, first, **fields).settle()
    return here.ended(0, ExitKind.PEER_LOST, step=12, commit=(2, 10)).settle()


def _counts(here: Job) -> tuple[int, int]:
    return here.now.failures.code, here.now.failures.infrastructure


class TestBlame:
    @pytest.mark.parametrize(
        ("error", "counts"),
        [
            (raised(), (1, 0)),
            ((ErrorKind.EXIT, "3", ""), (1, 0)),
            (killed("SIGSEGV"), (1, 0)),
            (killed("SIGKILL"), (0, 1)),
            (STORAGE, (0, 1)),
        ],
    )
    def test_the_rank_that_failed_by_itself_is_blamed(self, error: object, counts: tuple[int, int]) -> None:
        assert _counts(_lost(ExitKind.FAILED, error=error, step=12, commit=(2, 10))) == counts

    def test_ranks_that_lost_their_peer_are_never_blamed(self) -> None:
        here = _lost(ExitKind.FAILED, error=raised(), step=12, commit=(2, 10))
        assert "digits-ab12-1" in here.condition(ConditionType.SAVED).message
        assert here.condition(ConditionType.SAVED).reason == "CodeFailure"

    def test_all_lost_their_peer_is_infrastructure(self) -> None:
        assert _counts(_lost(ExitKind.PEER_LOST)) == (0, 1)

    def test_two_exceptions_of_one_run_are_one_failure(self) -> None:
        here = job().running(world=2).all_ended(ExitKind.FAILED, error=raised()).settle()
        assert _counts(here) == (1, 0)

    @pytest.mark.parametrize(
        ("first", "then", "counts"),
        [
            (killed(), raised(), (0, 1)),
            (raised(), killed(), (1, 0)),
            (STORAGE, raised(), (0, 1)),
        ],
        ids=["killed-then-raised", "raised-then-killed", "storage-then-raised"],
    )
    def test_the_first_death_decides(self, first: Any, then: Any, counts: tuple[int, int]) -> None:
        here = job().running(world=2).ended(1, ExitKind.FAILED, error=first).settle().after(1)
        assert _counts(here.ended(0, ExitKind.FAILED, error=then).settle()) == counts

    def test_of_two_deaths_in_the_same_second_the_one_from_outside_came_first(self) -> None:
        here = job().running(world=2).ended(0, ExitKind.FAILED, error=raised())
        assert _counts(here.ended(1, ExitKind.FAILED, error=killed()).settle()) == (0, 1)

    def test_a_node_dies_before_its_condition_says_so_and_before_the_peers_that_die_of_it(self) -> None:
        here = job().running(world=2).after(100).ended(0, ExitKind.FAILED, error=(ErrorKind.EXIT, "1", "")).settle()
        here = here.after(40).node("n2", ready=False).settle().after(60).settle()
        assert _counts(here) == (0, 1)

    def test_only_the_first_traceback_is_kept_and_of_it_only_the_end(self) -> None:
        tail = "\n".join(f"line {number} " + "x" * 200 for number in range(20))
        here = job().running(world=3)
        for number in (2, 1):
            here = here.ended(number, ExitKind.FAILED, error=raised(tail=tail)).settle()
        first, second = here.outcomes
        assert first.error_tail.endswith(tail[-1000:])
        assert len(first.error_tail) <= 2000
        assert (second.error_name, second.error_tail) == ("ValueError", "")

    def test_a_failure_of_the_code_keeps_its_traceback_beside_a_later_one_of_the_storage(self) -> None:
        here = job().running(world=3).ended(1, ExitKind.FAILED, error=raised()).settle().after(1)
        here = here.ended(0, ExitKind.FAILED, error=STORAGE).settle().ended(2, ExitKind.PEER_LOST).settle()
        assert here.condition(ConditionType.SAVED).message.endswith("ValueError: no")

    def test_a_kubelets_clock_that_is_ahead_writes_no_status_in_each_round(self) -> None:
        here = job(disruption=PATIENT).running(world=3)
        ahead = here.after(600).ended(1, ExitKind.FAILED, error=raised()).after(-600).step()
        assert ahead.outcomes[0].time == here.snapshot.now
        assert ahead.settle().after(0.1).plan().status is None

    @pytest.mark.parametrize("reason", ["OOMKilled"])
    def test_out_of_memory_is_infrastructure_whatever_the_rank_says(self, reason: str) -> None:
        here = job().running(world=2).ended(1, ExitKind.FAILED, error=raised("RuntimeError", "worker died"))
        pod = next(pod for pod in here.snapshot.pods if pod.name == "digits-ab12-1")
        assert pod.terminated is not None
        here = here.pod(1, terminated=pod.terminated.model_copy(update={"reason": reason})).settle()
        assert _counts(here.ended(0, ExitKind.PEER_LOST).settle()) == (0, 1)

    @pytest.mark.parametrize("message", ["", "Killed", "[" * 4000, '{"v":1,"outcome":"failed","run":1e400}', '{"v":9}'])
    def test_a_pod_without_an_outcome_is_infrastructure(self, message: str) -> None:
        here = job().running(world=2).exited(1, message, code=137).settle()
        assert _counts(here.ended(0, ExitKind.PEER_LOST).settle()) == (0, 1)

    def test_a_pod_that_vanished_unseen_is_infrastructure(self) -> None:
        here = job().running(world=2).missing(1).settle()
        assert _counts(here.ended(0, ExitKind.PEER_LOST).settle()) == (0, 1)

    def test_a_pod_that_vanished_while_others_saved_costs_nothing(self) -> None:
        here = job().running(world=2).leaving("n1").missing(0).settle()
        assert _counts(here.ended(1, ExitKind.CHECKPOINTED, step=20, commit=(4, 20)).settle()) == (0, 0)

    def test_a_pod_that_vanished_while_others_were_late_costs_nothing(self) -> None:
        here = job().running(world=2).leaving("n1").missing(0).settle()
        after = here.ended(1, ExitKind.EXIT_TIMEOUT, step=20, commit=(3, 10)).settle()
        assert _counts(after) == (0, 0)
        assert after.condition(ConditionType.SAVED).reason == "ExitTimeout"

    def test_stopped_costs_nothing(self) -> None:
        here = job().running(world=2).leaving("n1").all_ended(ExitKind.STOPPED).settle()
        assert _counts(here) == (0, 0)
        assert here.condition(ConditionType.SAVED).reason == "NothingToSave"

    def test_a_rank_that_lost_the_peer_which_stopped_as_it_was_asked_costs_nothing(self) -> None:
        here = job().running(world=2).leaving("n1").ended(0, ExitKind.STOPPED).settle()
        here = here.ended(1, ExitKind.PEER_LOST).settle()
        assert _counts(here) == (0, 0)
        assert here.condition(ConditionType.SAVED).reason == "NothingToSave"

    def test_all_that_lost_their_peer_while_they_were_to_save_are_infrastructure(self) -> None:
        here = job().running(world=2).leaving("n1").all_ended(ExitKind.PEER_LOST).settle()
        assert _counts(here) == (0, 1)

    def test_an_exception_during_the_exit_save_is_still_a_failure_of_the_code(self) -> None:
        here = job().running(world=2).leaving("n1").all_ended(ExitKind.FAILED, error=raised()).settle()
        assert _counts(here) == (1, 0)


REJECTED = {"phase": "Failed", "ready": False, "reason": "OutOfcpu", "message": "Pod was rejected: no cpu"}
TOLD = "OutOfcpu on node n2: Pod was rejected: no cpu"
EVICTED = {"reason": "Evicted", "message": "The node was low on resource: memory."}


class TestEndedFromOutside:
    """Kubelets refuse pods, and end them for want of memory or before a shutdown; schedulers make room."""

    def test_a_rejected_new_member_is_named_with_its_node_and_counts_as_infrastructure(self) -> None:
        here = job().starting(world=2).pod(1, **REJECTED).settle()
        assert _counts(here) == (0, 1)
        row = here.now.next.replacements if here.now.next else None
        assert row
        assert row.cause == f"digits-ab12-1 ended: {TOLD}"
        assert row.nodes == ("n2",)
        assert here.condition(ConditionType.RUNNING).reason == "Backoff"
        assert f"the last ones: digits-ab12-1 ended: {TOLD}" in here.condition(ConditionType.RUNNING).message
        (told,) = [event for one in here.history for event in one.events if event.reason == "MemberReplaced"]
        assert told.message.endswith(TOLD)

    def test_a_rejected_standby_costs_a_run_that_trains_nothing(self) -> None:
        here = job(disruption=PATIENT).running(world=2).leaving("n1")
        here = here.pod(2, node="n3", **REJECTED).settle()
        assert _counts(here) == (0, 0)
        assert here.now.current is not None
        assert here.now.current.plan.run == 1
        assert here.condition(ConditionType.RUNNING).status == "True"

    def test_a_member_rejected_by_a_kubelet_that_started_over_is_named_as_the_cause(self) -> None:
        here = job().running(world=2).pod(1, **REJECTED).settle()
        assert here.intent is not None
        assert here.intent.cause == f"digits-ab12-1 ended: {TOLD}"
        here = here.ended(0, ExitKind.PEER_LOST).settle()
        assert _counts(here) == (0, 1)
        assert TOLD in here.condition(ConditionType.SAVED).message
        here = here.after(2).settle().ready().settle()
        assert (here.now.history[-1].run, here.now.history[-1].cause) == (2, f"digits-ab12-1 ended: {TOLD}")
        assert here.now.history[-1].disruption is Disruption.MEMBER_LOST

    def test_a_member_that_was_rejected_before_its_peers_died_of_it_is_the_first_death(self) -> None:
        here = job().running(world=2)
        began = here.snapshot.now
        here = here.after(1).ended(0, ExitKind.FAILED, error=raised()).settle().after(1)
        here = here.pod(1, **REJECTED, unready_since=began).settle()
        assert _counts(here) == (0, 1)

    def test_an_eviction_is_the_cause_beside_the_exit_code(self) -> None:
        here = job().running(world=2).exited(1, code=137).pod(1, **EVICTED).settle()
        assert here.intent is not None
        assert here.intent.cause.endswith(
            "Evicted on node n2: The node was low on resource: memory.; Error (exit code 137)"
        )

    def test_a_members_own_exception_as_its_node_shuts_down_is_infrastructure(self) -> None:
        here = job().running(world=2).ended(1, ExitKind.FAILED, error=raised())
        here = here.pod(1, reason="Terminated", message="imminent node shutdown").settle()
        assert _counts(here.ended(0, ExitKind.PEER_LOST).settle()) == (0, 1)

    def test_one_that_saved_as_it_was_evicted_says_why_it_left(self) -> None:
        here = job().running(world=2).ended(1, ExitKind.CHECKPOINTED, step=20, commit=(4, 20)).pod(1, **EVICTED)
        here = here.settle()
        assert here.intent is not None
        assert here.intent.cause == (
            "digits-ab12-1 has saved and left: Evicted on node n2: The node was low on resource: memory."
        )

    def test_a_failed_pod_without_details_is_not_gone(self) -> None:
        here = job().running(world=2).pod(1, phase="Failed", ready=False).settle()
        assert here.intent is not None
        assert here.intent.cause == "digits-ab12-1 ended: the pod is Failed, and nothing says why"


class TestLostRule:
    def test_a_run_that_was_stopped_is_named_lost_for_its_entry_may_have_come_after_its_end(self) -> None:
        here = job().running(world=2).leaving("n1").all_ended(ExitKind.STOPPED).settle().ready().settle()
        assert here.run_plan is not None
        assert here.run_plan.lost == (1,)

    def test_a_run_that_has_saved_is_not_named_lost(self) -> None:
        here = job().running(world=2).leaving("n1").all_ended(ExitKind.CHECKPOINTED, step=20, commit=(4, 20))
        here = here.settle().ready().settle()
        assert here.run_plan is not None
        assert here.run_plan.lost == ()

    def test_the_survivors_are_stopped_at_once_and_the_run_is_lost(self) -> None:
        here = job().running(world=2).ended(1, ExitKind.FAILED, error=killed())
        said = leaves(here.plan())["digits-ab12-0"]
        assert (said.run, said.lost, said.seconds) == (2, (1,), 0)
        assert here.settle().now.phase is Phase.RECOVERING

    def test_survivors_that_do_not_stop_are_deleted_after_thirty_seconds(self) -> None:
        here = job().running(world=2).ended(1, ExitKind.FAILED, error=killed()).settle()
        assert here.after(16).settle().plan().requeue_after == 14
        assert here.after(30).step().snapshot.pods[0].deleting

    def test_the_next_plan_carries_the_lost_run(self) -> None:
        here = _lost(ExitKind.FAILED, error=killed(), step=12, commit=(2, 10)).after(1).settle().ready().settle()
        assert here.run_plan is not None
        assert (here.run_plan.run, here.run_plan.lost) == (2, (1,))

    def test_steps_that_the_next_run_has_begun_with_are_not_lost(self) -> None:
        """Its members tell so at their end: all of them, and it counts once."""
        here = _lost(ExitKind.FAILED, error=killed(), step=12, commit=(2, 10)).after(1).settle().ready().settle()
        assert (here.now.steps_lost, here.now.history[-1].steps_lost) == (2, 2)
        here = here.all_ended(ExitKind.CHECKPOINTED, run=2, step=20, commit=(5, 20), rescue=Rescue(2, 2)).settle()
        entry = here.now.history[-1]
        assert (entry.run, entry.steps_lost, entry.rescued, here.now.steps_lost) == (2, 0, 2, 0)

    def test_no_more_steps_come_back_than_were_counted(self) -> None:
        here = _lost(ExitKind.FAILED, error=killed(), step=12, commit=(2, 10)).after(1).settle().ready().settle()
        here = here.all_ended(ExitKind.CHECKPOINTED, run=2, step=20, commit=(5, 20), rescue=Rescue(2, 99)).settle()
        assert (here.now.steps_lost, here.now.history[-1].steps_lost) == (0, 0)

    def test_steps_since_the_last_commit_are_counted(self) -> None:
        here = _lost(ExitKind.FAILED, error=killed(), step=12, commit=(2, 10))
        assert here.now.steps_lost == 2
        assert here.condition(ConditionType.SAVED).status == "False"

    def test_the_list_of_lost_runs_stays_short(self) -> None:
        here = job(failure={"max_infrastructure_failures": 50}).running(world=1)
        for _ in range(35):
            here = here.missing(here.members[0]).settle().after(300).settle().ready().settle()
        assert here.now.lost == tuple(range(4, 36))


class TestBackoff:
    def test_the_pause_doubles_and_is_bounded(self) -> None:
        here, pauses = job(failure={"max_infrastructure_failures": 50}).running(world=1), []
        for _ in range(11):
            here = here.missing(here.members[0]).settle()
            pauses.append(here.plan().requeue_after)
            assert creates(here.plan()) == []
            here = here.after(pauses[-1] or 0).settle().ready().settle()
        assert pauses == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]

    def test_a_new_commit_makes_it_short_again(self) -> None:
        here, counted = job().running(world=1), []
        for commit in [(2, 10), (2, 10), (3, 20)]:
            here = here.ended(here.members[0], ExitKind.FAILED, error=killed(), step=25, commit=commit).settle()
            counted.append(here.now.failures.consecutive)
            here = here.after(300).settle().ready().settle()
        assert counted == [1, 2, 1]
        assert here.now.step == 20

    def test_the_condition_says_until_when(self) -> None:
        here = job().running(world=1).missing(0).settle()
        running = here.condition(ConditionType.RUNNING)
        assert running.reason == "Backoff"
        assert "12:00:01Z" in running.message

    def test_a_standby_that_ends_by_itself_costs_a_failure_and_a_pause(self) -> None:
        here = job().starting(world=2).exited(0, "", code=1).settle()
        assert _counts(here) == (0, 1)
        assert here.condition(ConditionType.RUNNING).reason == "Backoff"
        assert here.after(1).settle().members == ("digits-ab12-1", "digits-ab12-2")

    @pytest.mark.parametrize("failed", [(0,), (1,), (0, 1)])
    def test_an_import_that_fails_before_the_run_is_a_failure_of_the_code(self, failed: tuple[int, ...]) -> None:
        """However many of them it fails in, and however the others end."""
        here = job().starting(world=2)
        for member in (0, 1):
            crash = raised("ImportError", "ImportError: libcudart.so") if member in failed else killed()
            here = here.ended(member, ExitKind.FAILED, error=crash)
        assert _counts(here.settle()) == (1, 0)


class TestBudget:
    def test_one_failure_more_than_allowed_fails_the_job_with_the_blamed_ranks_traceback(self) -> None:
        here = job(failure={"max_code_failures": 1}).running(world=2)
        tail = "\n".join(["Traceback (most recent call last):", *["  frame"] * 40, "ValueError: bad label 7"])
        for _ in range(2):
            first, second = here.members
            here = here.ended(second, ExitKind.FAILED, error=raised(tail=tail), step=12).settle()
            here = here.ended(first, ExitKind.PEER_LOST, step=12).settle().after(300).settle().ready().settle()
        failed = here.condition(ConditionType.FAILED)
        assert (failed.status, failed.reason) == ("True", "TooManyCodeFailures")
        assert failed.message.endswith("ValueError: bad label 7")
        assert failed.message.startswith(
            "2 failures of the code in a row, maxCodeFailures is 1; the last: digits-ab12-3: failed"
        )
        assert here.now.phase is Phase.FAILED

    def test_pods_of_the_last_run_stay_for_their_logs(self) -> None:
        here = (
            job(failure={"max_code_failures": 0}).running(world=2).all_ended(ExitKind.FAILED, error=raised()).settle()
        )
        assert here.names() == ["0", "1"]
        assert here.after(3600).settle().names() == ["0", "1"]

    def test_infrastructure_has_a_budget_of_its_own(self) -> None:
        here = job(failure={"max_infrastructure_failures": 0}).running(world=1).missing(0).settle()
        assert here.condition(ConditionType.FAILED).reason == "TooManyInfrastructureFailures"


class TestHealing:
    """Budgets are for repeated failures; those that a job survives do not add up forever."""

    def _failing(self, error: object, commits: list[int], *, days: float = 0.0, **failure: int) -> Job:
        """A run of one member fails once for each of these numbers in the log, the newest commit's by then."""
        here = job(failure=failure).running(world=1)
        for seq in commits:
            here = here.after(days * 86400).ended(here.members[0], ExitKind.FAILED, error=error, commit=(seq, seq * 9))
            here = here.settle().after(300).settle().ready().settle()
            if here.now.finished_at:
                break
        return here

    def test_four_errors_with_a_thousand_commits_between_are_each_the_first(self) -> None:
        here = self._failing(raised(), [1000, 2000, 3000, 4000, 5000])
        assert here.now.phase is Phase.RUNNING
        assert (here.now.failures.code, here.now.failures.code_in_a_row) == (5, 1)

    def test_with_ten_commits_between_the_row_goes_on_and_with_more_another_begins(self) -> None:
        assert self._failing(raised(), [10, 20, 30, 40]).now.phase is Phase.FAILED
        assert self._failing(raised(), [10, 21, 32, 43]).now.phase is Phase.RUNNING

    def test_a_new_commit_and_a_day_between_are_enough_for_a_job_that_saves_seldom(self) -> None:
        assert self._failing(raised(), [10, 11, 12, 13, 14], days=1).now.phase is Phase.RUNNING

    def test_without_a_new_commit_no_time_heals(self) -> None:
        failed = self._failing(raised(), [10, 10, 10, 10], days=7)
        assert failed.condition(ConditionType.FAILED).reason == "TooManyCodeFailures"

    @pytest.mark.parametrize(("seq", "in_a_row"), [(22, 3), (23, 1)])
    def test_failures_of_others_between_leave_the_row_as_it_is(self, seq: int, in_a_row: int) -> None:
        here = self._failing(raised(), [10, 12])
        here = here.ended(here.members[0], ExitKind.FAILED, error=killed(), commit=(18, 162)).settle()
        here = here.after(300).settle().ready().settle()
        here = here.ended(here.members[0], ExitKind.FAILED, error=raised(), commit=(seq, 200)).settle()
        assert here.now.failures.code_in_a_row == in_a_row

    def test_infrastructure_that_lets_the_job_commit_never_ends_it(self) -> None:
        here = self._failing(killed(), [2, 3, 4, 5, 6], max_infrastructure_failures=1)
        assert here.now.phase is Phase.RUNNING
        assert (here.now.failures.infrastructure, here.now.failures.infrastructure_in_a_row) == (5, 1)

    def test_infrastructure_that_lets_it_commit_nothing_ends_it(self) -> None:
        failed = self._failing(killed(), [2, 2], max_infrastructure_failures=1).condition(ConditionType.FAILED)
        assert failed.message.startswith("2 failures of infrastructure without a new commit, maxInfra")


class TestNodesOnWhichMembersHung:
    """With failure.progressTimeoutSeconds: the agent ended a process that made no progress."""

    HUNG = (ErrorKind.EXIT, "NoProgress", "rank 1 made no progress")

    def _hung(self, here: Job, number: int = 1, **fields: Any) -> Job:
        """That member hangs in step 12; its peers lose it."""
        here = here.ended(number, ExitKind.FAILED, error=self.HUNG, **{"step": 12} | fields).settle()
        return here.all_ended(ExitKind.PEER_LOST, step=12, commit=(2, 10)).settle().after(1).settle()

    def _avoided(self, here: Job) -> tuple[str, ...]:
        """What the newest new member keeps off."""
        made = [one for plan in here.history for one in plan.actions if isinstance(one, CreatePod)]
        return made[-1].avoid

    def _node(self, here: Job, number: int) -> str:
        return next(pod.node for pod in here.snapshot.pods if pod.name == here.name(number))

    def test_its_next_member_is_made_rather_elsewhere(self) -> None:
        here = job().running(world=2)
        after = self._hung(here)
        assert after.now.failures.code == 1
        assert self._avoided(after) == (self._node(here, 1),)

    def test_a_node_on_which_the_script_raised_is_as_good_as_any(self) -> None:
        here = job().running(world=2).ended(1, ExitKind.FAILED, error=raised(), step=12).settle()
        assert self._avoided(here.all_ended(ExitKind.PEER_LOST, step=12).settle().after(1).settle()) == ()

    def test_of_all_if_all_hung_at_once(self) -> None:
        here = job().running(world=2)
        nodes = {self._node(here, number) for number in (0, 1)}
        after = here.all_ended(ExitKind.FAILED, error=self.HUNG, step=12).settle().after(1).settle()
        assert after.now.failures.code == 1
        assert set(self._avoided(after)) == nodes

    def test_no_longer_than_the_failure_counts(self) -> None:
        here = self._hung(job().running(world=1), 0, commit=(10, 12)).ready().settle()
        for seq, kept in ((20, True), (21, False)):
            ended = here.ended(here.members[0], ExitKind.FAILED, error=raised(), step=90, commit=(seq, 90)).settle()
            assert bool(self._avoided(ended.after(300).settle())) is kept

    def test_nor_a_newcomers_node_that_hung_before_its_first_step(self) -> None:
        """That is a failure of its node, which counts until the next commit."""
        failures = Failures(infrastructure_in_a_row=1, hung_nodes=("n9",))
        here = job().running(world=1).status(failures=failures)
        after = here.ended(0, ExitKind.FAILED, error=raised(), step=90, commit=(5, 90)).settle().after(1).settle()
        assert self._avoided(after) == ()

    def test_nor_do_spares_land_there(self) -> None:
        here = job(elastic=Elastic(min_replicas=1, max_replicas=2)).running(world=2)
        after = (
            self._hung(here)
            .ready()
            .settle()
            .spec(replicas=2, elastic=Elastic(min_replicas=1, max_replicas=2, spares=1))
        )
        made = len(after.history)
        after = after.settle().after(300).settle()
        spares = [one for plan in after.history[made:] for one in plan.actions if isinstance(one, CreatePod)]
        assert [one.avoid for one in spares] == [(self._node(here, 1),)]

    def test_the_newest_eight_are_kept(self) -> None:
        failures = Failures(code_in_a_row=1, hung_nodes=tuple(f"m{number}" for number in range(8)))
        here = job(failure={"max_code_failures": 9}).running(world=2).status(failures=failures)
        assert self._avoided(self._hung(here)) == (*failures.hung_nodes[1:], self._node(here, 1))


class TestFenced:
    def test_the_next_run_jumps_past_the_one_that_was_opened(self) -> None:
        here = job().running(world=1).ended(0, ExitKind.FENCED, opened=7).settle()
        assert _counts(here) == (0, 1)
        after = here.after(1).settle().ready().settle()
        assert after.run_plan is not None
        assert after.run_plan.run == 8

    def test_it_jumps_even_past_the_number_that_leavers_got(self) -> None:
        here = job().running(world=1).leaving("n1").ended(0, ExitKind.FENCED, opened=7).settle()
        after = here.after(1).settle().ready().settle()
        assert after.run_plan is not None
        assert after.run_plan.run == 8

    def test_a_pod_of_a_run_that_status_knows_nothing_of_is_heard_too(self) -> None:
        restored = job().running(world=1).ended(0, ExitKind.HANDED_OVER, opened=7).status(current=None)
        assert restored.settle().now.opened == 7

    def test_another_jobs_uid_is_the_end(self) -> None:
        error = (ErrorKind.EXCEPTION, "RootTakenOver", "")
        here = job().running(world=1).ended(0, ExitKind.FENCED, opened=7, error=error).settle()
        assert here.condition(ConditionType.FAILED).reason == "RootTakenOver"

    def test_numbers_that_no_honest_outcome_has_are_not_believed(self) -> None:
        here = job().running(world=1).ended(0, ExitKind.FENCED, opened=2**60).settle()
        assert here.now.opened == 0


def test_terminated_without_a_reason_is_described_by_its_exit_code() -> None:
    here = job().running(world=1).pod(0, terminated=Terminated(exit_code=137), phase="Failed").settle()
    assert "Error (exit code 137)" in here.condition(ConditionType.SAVED).message
