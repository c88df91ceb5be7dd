"""The operator's rights are exactly what it uses, by the audit log of all scenarios: so this comes after them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from e2e.harness import operator
from e2e.harness.lab import Lab
from e2e.harness.shared_run import SharedRun
from e2e.harness.workers import remove_clusters
from e2e.scenarios.conftest import Train
from e2e.scenarios.training import Trouble
from tests.api.rbac import api_audit_logs, audit_rbac

pytestmark = pytest.mark.cluster

USER = f"system:serviceaccount:{operator.NAMESPACE}:{operator.RELEASE}-operator"
OTHERS_SECONDS = 600.0
SHORT_LIVED = Trouble(spec={"activeDeadlineSeconds": 1, "ttlSecondsAfterFinished": 1})


def test_a_finished_job_is_removed_when_its_time_is_over(train: Train) -> None:
    with train(trouble=SHORT_LIVED) as training:
        training.is_removed()


@pytest.fixture(scope="module")
def the_others_are_over(request: pytest.FixtureRequest) -> Iterator[None]:
    """They may still run in another process. The cluster is not needed after the tests of this file."""
    run = SharedRun.current()
    others = [item.nodeid for item in request.session.items if item.path != request.path]
    seen = [nodeid for nodeid in others if nodeid.startswith(("tests/api/", "e2e/scenarios/"))]
    left = run.wait_for(seen, seconds=OTHERS_SECONDS)
    assert not left, f"not over after {OTHERS_SECONDS:g} s, and their requests are part of the audit: {left}"
    yield
    remove_clusters(run)


@pytest.mark.usefixtures("the_others_are_over")
def test_whatever_the_operator_does_it_has_the_right_to(lab: Lab) -> None:
    difference = audit_rbac([lab.cluster.audit_log], rendered(lab), USER)
    assert not difference.ungranted, sorted(map(str, difference.ungranted))


@pytest.mark.usefixtures("the_others_are_over")
def test_every_right_is_used_somewhere_in_the_whole_test_run(lab: Lab) -> None:
    others = api_audit_logs()
    if not others:
        pytest.skip("some rights are used in tests/api only: run both together")
    difference = audit_rbac([lab.cluster.audit_log, *others], rendered(lab), USER)
    assert not difference.unused, sorted(map(str, difference.unused))


def rendered(lab: Lab) -> str:
    """The chart, with the roles in it."""
    return lab.cluster.helm("template", operator.RELEASE, operator.CHART, "--namespace", operator.NAMESPACE).stdout
