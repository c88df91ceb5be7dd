"""The budgets and events the operator creates."""

from __future__ import annotations

from perdure.wire import LABEL_JOB, LABEL_ROLE
from perdure_operator.api.names import LABEL_UID
from perdure_operator.cluster.read import parse
from perdure_operator.cluster.write import manifests
from perdure_operator.state.decision import JobEvent
from tests.support.raw import NOW, UID, snapshot


def test_a_budget_covers_members_of_this_very_job_and_no_standby() -> None:
    budget = manifests.budget(snapshot(), 2)
    labels = {LABEL_JOB: "digits", LABEL_UID: UID}
    selector = budget["spec"]["selector"]
    assert budget["spec"]["minAvailable"] == 2
    assert budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
    assert parse.selects(selector, labels | {LABEL_ROLE: "member"})
    assert not parse.selects(selector, labels | {LABEL_ROLE: "standby"})
    assert not parse.selects(selector, labels | {LABEL_ROLE: "member", LABEL_UID: "predecessor"})


def test_a_long_event_keeps_its_advice_and_its_end() -> None:
    said = JobEvent(reason="R", message="check the Secret\n" + "x" * 2000 + "\nValueError: no")
    note = manifests.event(snapshot(), said, now=NOW, instance="me", number="1")["note"]
    assert note.startswith("check the Secret\n")
    assert note.endswith("\nValueError: no")


def test_an_event_fits_whatever_its_message() -> None:
    raw = manifests.event(snapshot(), JobEvent(reason="R", message="ä" * 2000), now=NOW, instance="me", number="1")
    assert len(raw["note"].encode()) <= 1024
    assert raw["regarding"]["uid"] == UID
    assert raw["eventTime"] == "2026-01-02T03:04:05.000000Z"
