"""The operator's rights are exactly what it uses, by the audit log of all scenarios: so this comes after them."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

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


@dataclass(frozen=True)
class Audited:
    """What the operator might do in the cluster, and what it has asked for there."""

    rendered: str
    """The chart, with the roles in it."""
    log: Path


@pytest.fixture(scope="module")
def audited(lab: Lab, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Audited:
    """Once all scenarios are over. Nobody needs the cluster any more, and it computes as long as it is there."""
    wait_for_those_of("e2e/scenarios/", request)
    rendered = lab.cluster.helm("template", operator.RELEASE, operator.CHART, "--namespace", operator.NAMESPACE).stdout
    log = Path(shutil.copy(lab.cluster.audit_log, tmp_path_factory.mktemp("audit")))
    remove_clusters(SharedRun.current())
    return Audited(rendered, log)


def wait_for_those_of(folder: str, request: pytest.FixtureRequest) -> None:
    """They may still run in another process."""
    seen = [item.nodeid for item in request.session.items if item.path != request.path]
    others = [nodeid for nodeid in seen if nodeid.startswith(folder)]
    left = SharedRun.current().wait_for(others, seconds=OTHERS_SECONDS)
    assert not left, f"not over after {OTHERS_SECONDS:g} s, and their requests are part of the audit: {left}"


def test_whatever_the_operator_does_it_has_the_right_to(audited: Audited) -> None:
    difference = audit_rbac([audited.log], audited.rendered, USER)
    assert not difference.ungranted, sorted(map(str, difference.ungranted))


def test_every_right_is_used_somewhere_in_the_whole_test_run(audited: Audited, request: pytest.FixtureRequest) -> None:
    wait_for_those_of("tests/api/", request)
    others = api_audit_logs()
    if not others:
        pytest.skip("some rights are used in tests/api only: run both together")
    difference = audit_rbac([audited.log, *others], audited.rendered, USER, others=others)
    assert not difference.unused, sorted(map(str, difference.unused))
