"""A decision in words: each text was written by hand from the state, not taken from what the code prints."""

from __future__ import annotations

from textwrap import dedent

from perdure.wire import ExitKind
from perdure_operator.cli.explain import explain
from tests.support.jobs import Job, job


def _told(here: Job) -> str:
    return explain(here.snapshot, here.plan())


def _text(text: str) -> str:
    return dedent(text).lstrip("\n")


def test_a_job_that_needs_nothing() -> None:
    assert _told(job().running(world=2)) == _text(
        """
        Job default/digits at 2026-08-01 12:00:00Z
        Stage: running
        Running: Assigned: run 1: 2 members have their ranks, 2 processes in all; whether they train is not known \
until they end: see kubectl logs digits-ab12-0; no commit is known yet
        Why:
          nothing to do
        Looks again: when something happens
        """
    )


def test_a_deleted_member_with_the_policy_and_its_reason() -> None:
    here = job().running(world=2).leaving("n1").all_ended(ExitKind.CHECKPOINTED, step=20, commit=(4, 20))
    assert _told(here) == _text(
        """
        Job default/digits at 2026-08-01 12:00:01Z
        Stage: leaving -> starting
        Waiting: StartingMembers: waiting until all 2 are Ready: digits-ab12-2, digits-ab12-3; \
no time limit: the job goes on when the kubelets report every member Ready; \
to do: nothing. If this stays, `kubectl describe pod` shows what they wait for
        Why:
          digits-ab12-0 ended: checkpointed
          digits-ab12-1 ended: checkpointed
          digits-ab12-0 is deleted: it belongs to no run any more
          digits-ab12-1 is deleted: it belongs to no run any more
        Writes to status:
          condition Saved: True, Checkpointed: run 1 ended at step 20: 0 steps lost
          phase: "Starting"
          step: 20
          timeAccount.goesTo: "Members"
          timeAccount.since: "2026-08-01T12:00:01Z"
          timeAccount.runSeconds: 1.0
          timeAccount.spent.unreported: 1.0
          exitSeconds: 0.0
          replicas: 0
          next.reached: 20
          next.kept: 20
          commitSeq: 4
          current: removed
        Then does:
          1. DeletePod digits-ab12-0: it belongs to no run any more (discard)
          2. DeletePod digits-ab12-1: it belongs to no run any more (discard)
        Tells:
          Normal Checkpointed: run 1 ended at step 20: 0 steps lost
        Looks again: when something happens
        """
    )


def test_members_that_are_asked_to_leave_and_until_when() -> None:
    told = _told(job().running(world=2).cordon("n1").settle().after(1))
    assert "\nStage: quiet -> leaving\n" in told
    assert ". CreatePod digits-ab12-2: a member of the next run (create)\n" in told
    assert "\nWaiting: ExitSave: waiting for the exit save of digits-ab12-0 (node n1), digits-ab12-1 (node n2) " in told
    assert " until 12:10:01Z; " in told
    assert "\n  current.intent.leave: true\n" in told
    assert (
        "  1. Assign digits-ab12-0 as member, to leave within 600 s, for run 2: "
        "asked to save and leave: node n1 is cordoned (ask_to_leave)\n"
    ) in told
    assert told.endswith("Looks again: in 10 s, at 12:00:11Z\n")


def test_a_member_that_is_late() -> None:
    told = _told(job().running(world=2).leaving("n1").after(630))
    assert "\n  1. DeletePod digits-ab12-0: its time to save is over (wait_for_exits)\n" in told


def test_the_first_writes_of_a_job() -> None:
    told = _told(job().step())
    assert "\n  1. SetBudget minAvailable 2: the budget protects 2 members (protect)\n" in told
    assert "\n  2. CreatePod digits-ab12-0: a member of the next run (create)\n" in told


def test_ranks() -> None:
    told = _told(job().starting(world=2).ready())
    assert "\n  1. Assign digits-ab12-0 as member, rank 0 of 2 in run 1: its rank in run 1 (assign)\n" in told


def test_a_wait_is_reported_once() -> None:
    told = _told(job().starting().pod(1, unschedulable="0/3 nodes are available"))
    assert told.count("0/3 nodes are available") == 2  # as the reason to wait, and as the event
