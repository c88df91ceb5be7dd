"""`kubectl perdure move --off` adds to what users have asked before, and asks only jobs that have pods there."""

from __future__ import annotations

import asyncio
import io

import pytest

from perdure_operator.api.default_signals import VACATE_ANNOTATION
from perdure_operator.cli.kubectl import moving
from perdure_operator.cli.kubectl.moving import Foretold, JobThere, LeaveRequest, page_of_foretold
from perdure_operator.cli.kubectl.screen import draw
from perdure_operator.cli.kubectl.what_if import DrainSeen, Rules, move
from perdure_operator.cluster.protocol import JOBS
from tests.api.scene import completed
from tests.support.stage import KEY, Stage
from tests.unit.operator.cli.kubectl.seen import seen, training

WITHDRAW = "kubectl perdure move digits --withdraw --off n1 -n ns"


def there(stage: Stage, *nodes: str) -> JobThere:
    told = seen(stage)
    assert told.pods is not None
    return moving.there(told.record, told.pods, nodes)


def vacating(value: str, *nodes: str) -> JobThere:
    stage = training()
    if value:
        annotations = {VACATE_ANNOTATION: value}
        stage.cluster.change(JOBS, *KEY, lambda raw: raw["metadata"].update(annotations=annotations))
    return there(stage, *nodes)


def asked(value: str, *nodes: str) -> LeaveRequest:
    return moving.request(vacating(value, *nodes))


@pytest.mark.parametrize(
    ("before", "vacate", "asked_before"),
    [
        ("", "n1", False),
        ("false", "n1", False),
        ("n1", "n1", True),
        ("n1 n3", "n1,n3", True),
        ("n3, digits-1", "n3,digits-1,n1", False),
    ],
)
def test_a_node_is_added_to_what_was_asked_before(before: str, vacate: str, asked_before: bool) -> None:
    found = asked(before, "n1")
    assert (found.vacate, found.withdraw, found.asked_before) == (vacate, WITHDRAW, asked_before)


@pytest.mark.parametrize(
    ("before", "left"), [("n1", ""), ("n3 n1,digits-1", "n3,digits-1"), ("n3", None), ("true", None)]
)
def test_a_withdrawal_leaves_what_else_was_asked(before: str, left: str | None) -> None:
    found = moving.withdrawal(vacating(before).record, ["n1", "n2"])
    assert (found and (found.nodes, found.vacate)) == (None if left is None else (("n1",), left))


def test_a_job_that_is_asked_for_nothing_there_is_told_with_its_annotation() -> None:
    assert moving.not_asked(vacating("").record, ["n1", "n2"]) == "ns/digits is not asked to leave n1, n2"
    every = moving.not_asked(vacating("true").record, ["n1"])
    assert every.endswith(f": its annotation {VACATE_ANNOTATION}=true names none")


def test_only_nodes_with_a_pod_that_lives_are_named() -> None:
    stage = training()
    first, second = stage.names()
    assert moving.request(there(stage, "n1", "n3")).nodes == ("n1",)
    assert moving.request(there(stage, "n2", "n1")).pods == (first, second)
    stage.end_pod(first, completed(1, 0, 3))
    assert there(stage, "n1").pods == ()


def test_a_pod_of_another_owner_is_not_the_jobs() -> None:
    told = seen(training())
    assert told.pods is not None
    foreign = [pod.model_copy(update={"owner_uid": "another"}) for pod in told.pods]
    assert moving.there(told.record, foreign, ["n1"]).pods == ()


def test_a_request_for_all_members_is_not_made_one_for_some() -> None:
    assert moving.refusal(vacating("", "n1")) == ""
    removes = f"kubectl annotate trainingjob digits -n ns {VACATE_ANNOTATION}- --as=me"
    assert moving.refusal(vacating("true", "n1"), ["--as=me"]).endswith(f"remove it first: {removes}")


def test_what_was_asked_says_how_to_withdraw_it() -> None:
    out = io.StringIO()
    draw(moving.page([asked("", "n1")]), out)
    assert out.getvalue().splitlines()[-1] == WITHDRAW
    with_flags = moving.request(vacating("", "n1"), ["--context=prod", "--kubeconfig=my file"])
    assert with_flags.withdraw == f"{WITHDRAW} --context=prod '--kubeconfig=my file'"
    assert moving.nobody(["n1", "n2"], "team") == "No training job in team namespace has a pod on n1, n2."


def test_a_dry_run_counts_from_the_request_and_speaks_of_no_eviction() -> None:
    stage = training()
    snapshot = asyncio.run(stage.observer.observe(KEY))
    assert snapshot is not None
    told = move(DrainSeen(snapshot), ["n1"], "n1")
    out = io.StringIO()
    foretold = Foretold(requests=(asked("", "n1"), asked("n2", "n2")), moves=(told,))
    draw(page_of_foretold(foretold, Rules("the shipped ones alone", "1", "1"), stage.now), out)
    page = out.getvalue()
    assert "31s after the request; they may save until 10m after the request" in page
    assert "ns/digits: asked before, so nothing changes" in page
    assert "viction" not in page
    assert "cordon" not in page
