"""What the scale bench reads from an audit log, on a log written by hand."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from e2e.bench.scale_audit import calls, cordons, reactions, requests

OPERATOR = "system:serviceaccount:default:operator"


def line(second: float, verb: str, resource: str, name: str, *, user: str = OPERATOR, took: float = 0.01) -> str:
    main, _, sub = resource.partition("/")
    times = [f"2026-01-01T00:00:{value:09.6f}Z" for value in (second, second + took)]
    target = {"resource": main, "name": name, "namespace": "team-00"} | ({"subresource": sub} if sub else {})
    entry = {"stage": "ResponseComplete", "verb": verb, "user": {"username": user}, "objectRef": target}
    entry |= {"requestReceivedTimestamp": times[0], "stageTimestamp": times[1], "responseStatus": {"code": 200}}
    return json.dumps(entry) + "\n"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "audit.log"
    path.write_text(
        line(1, "create", "pods", "a-0")
        + line(2, "watch", "pods", "")
        + line(3, "update", "leases", "perdure-operator")
        + line(10, "patch", "nodes", "fake-001", user="admin")
        + line(10.5, "update", "trainingjobs/status", "a")
        + line(10.8, "update", "trainingjobs/status", "a")
        + line(11.51, "update", "trainingjobs/status", "b")
        + line(12, "update", "trainingjobs/status", "elsewhere")
        + '{"stage": "ResponseComplete", "half a line'
    )
    return path


def test_calls_leave_out_watches_leases_and_other_users(log: Path) -> None:
    assert calls(requests(log), OPERATOR) == Counter({"update trainingjobs/status": 4, "create pods": 1})


def test_only_what_came_since_then_counts(log: Path) -> None:
    since = next(request.received for request in requests(log) if request.name == "b")
    assert sum(calls(requests(log, since), OPERATOR).values()) == 2


def test_a_reaction_is_the_first_write_about_each_job_after_the_cordon_was_answered(log: Path) -> None:
    seen = list(requests(log))
    cordoned = cordons(seen)["fake-001"]
    found = reactions(seen, OPERATOR, cordoned, {("team-00", "a"), ("team-00", "b"), ("team-00", "never")})
    assert found == [pytest.approx(0.49), pytest.approx(1.5)]
