"""The quiet second before members are asked to leave."""

from __future__ import annotations

from tests.support.jobs import Job, job


def _quiet(here: Job) -> str:
    return next(reason for reason in here.plan().reasons if reason.startswith("waiting until"))


def test_a_cordon_waits_as_more_nodes_may_follow() -> None:
    assert _quiet(job().running(2).cordon("n1").settle()).endswith(": more nodes may follow")


def test_another_size_waits_as_it_may_change_again() -> None:
    assert _quiet(job().running(2).spec(replicas=1).settle()).endswith(": the wanted size may change again")
