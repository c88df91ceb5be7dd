"""Containers that start before the trainer: their end is the member's, and status names what keeps one from
starting."""

from __future__ import annotations

from typing import Any, Final

import pytest

from e2e.scenarios.conftest import Train
from e2e.scenarios.training import IMAGE, Trouble

pytestmark = pytest.mark.cluster

SECURE: Final = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
FETCH: Final = {
    "name": "fetch",
    "image": IMAGE,
    "command": ["python", "-c", "raise SystemExit('no such bucket')"],
    "terminationMessagePolicy": "FallbackToLogsOnError",
    "securityContext": SECURE,
}
LOGS: Final = {
    "name": "logs",
    "image": "perdure.invalid/nobody/pushed:this",
    "restartPolicy": "Always",
    "securityContext": SECURE,
}


def with_init(*containers: dict[str, Any], **spec: Any) -> Trouble:
    return Trouble(spec={"template": {"spec": {"initContainers": list(containers)}}, **spec})


def test_an_init_container_that_fails_costs_the_budget_of_the_code_and_says_its_last_words(train: Train) -> None:
    with train(trouble=with_init(FETCH, failure={"maxCodeFailures": 1})) as training:
        status = training.fails()
        failed = training.shows("TooManyCodeFailures")
    assert (status["failures"]["code"], status["failures"].get("infrastructure", 0)) == (2, 0)
    assert failed["type"] == "Failed"
    assert "init container fetch ended: Error (exit code 1)\nno such bucket" in failed["message"]


@pytest.mark.chaos
def test_a_sidecar_without_an_image_is_named(train: Train) -> None:
    with train(trouble=with_init(LOGS)) as training:
        waits = training.shows("ImagePullFailed")
    assert waits["type"] == "Running"
    assert "container logs of " in waits["message"]
    assert "perdure.invalid/nobody/pushed:this" in waits["message"]
