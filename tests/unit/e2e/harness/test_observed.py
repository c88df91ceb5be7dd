"""What a watch has seen is read right: nothing is taken for true before it was, and endings are kept."""

from __future__ import annotations

import json
from dataclasses import replace

from e2e.harness import observed
from e2e.harness.watching import Documents, Object
from tests.unit.e2e.harness.watched import ended, job, leaving, pod, ranked

PLAN = {"run": 1, "members": [{"name": "a", "uid": "uid-a", "rank": 0}, {"name": "b", "uid": "uid-b", "rank": 1}]}


def test_watch_events_are_distinguished_from_kubectls_own_words() -> None:
    found: list[Object] = []
    documents = Documents(found.append)
    event = {"type": "ADDED", "object": {"kind": "Pod"}}
    for line in (f"{json.dumps(event)}\n", "error: the server went away\n", f"{json.dumps(event)}\n"):
        documents.line(line)
    assert found == [event, event]
    assert documents.complaints == ["error: the server went away"]


def test_a_run_trains_only_when_each_of_its_members_has_its_rank() -> None:
    history = [job(1, current={"run": 1, "plan": PLAN}), pod(2, "a", assignment=ranked(1, 0)), pod(3, "b")]
    assert observed.training_run(history) is None
    history.append(pod(4, "b", assignment=ranked(1, 1)))
    assert observed.training_run(history) is not None
    assert observed.training_run(history, at_least=2) is None


def test_a_newcomer_is_distinguished_from_a_member_that_had_a_rank() -> None:
    history = [pod(1, "a", assignment=ranked(1, 0)), pod(2, "c"), pod(3, "a", assignment=ranked(2, 0))]
    assert observed.joined(history, 2) is None
    history.append(pod(4, "c", assignment=ranked(2, 1)))
    assert (observed.joined(history, 2) or {})["metadata"]["name"] == "c"


def test_spares_are_warm_when_as_many_pods_of_theirs_are_ready_as_are_asked_for() -> None:
    spared = job(1, spares={"names": ["c"]})
    spared = replace(spared, object={**spared.object, "spec": {"elastic": {"spares": 1}}})
    member, cold, spare = pod(2, "a"), pod(3, "c"), pod(4, "c")
    for one in (member, spare):
        one.object["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    assert observed.has_warm_spares([spared, member]) is None
    assert observed.has_warm_spares([spared, member, cold]) is None
    assert observed.has_warm_spares([spared, member, cold, spare]) == [spare.object]


def test_a_condition_is_found_by_its_type() -> None:
    conditions = [{"type": "Running", "message": "it runs"}, {"type": "Disrupted", "message": "a drain"}]
    assert observed.condition({"conditions": conditions}, "Disrupted")["message"] == "a drain"
    assert observed.condition({}, "Disrupted") == {}


def test_an_intent_counts_only_when_it_is_final() -> None:
    assert observed.has_intent([job(1, current={"intent": {"leave": False}})]) is None
    assert observed.has_intent([job(1, current={"intent": {"leave": True}}), job(2, current=None)]) is not None


def test_the_first_pod_asked_to_leave_is_found() -> None:
    history = [
        pod(1, "a", assignment=ranked(1, 0)),
        pod(2, "b", assignment=leaving(2)),
        pod(3, "a", assignment=leaving(2)),
    ]
    asked = observed.asked_to_leave(history)
    assert asked is not None
    assert asked["metadata"]["name"] == "b"


def test_deleted_pods_do_not_exist_and_their_outcomes_stay_known() -> None:
    history = [pod(1, "a", assignment=ranked(1, 0)), pod(2, "a", outcome=ended(1), deleted=True)]
    assert observed.pods(history) == []
    assert [outcome["outcome"] for outcome in observed.outcomes(history)] == ["checkpointed"]


def test_one_pod_has_one_outcome_however_often_it_is_seen() -> None:
    history = [pod(1, "a", outcome=ended(1)), pod(2, "a", outcome=ended(1)), pod(3, "b", outcome=ended(1))]
    assert len(observed.outcomes(history)) == 2


def test_a_termination_message_that_is_no_outcome_is_none() -> None:
    assert observed.outcome_of(pod(1, "a", outcome="no such file").object) is None
    assert observed.outcome_of(pod(1, "a", outcome={"some": "json"}).object) is None


def test_the_member_of_a_rank_is_the_plans_pod_and_no_other() -> None:
    history = [job(1, current={"run": 1, "plan": PLAN}), pod(2, "a"), pod(2, "b"), pod(3, "c")]
    assert observed.member_of_rank(history, 1)["metadata"]["name"] == "b"


def test_a_condition_is_found_even_if_it_has_passed() -> None:
    condition = {"type": "Saving", "reason": "ExitSavePending", "message": "a, b"}
    history = [job(1, conditions=[condition]), job(2, conditions=[])]
    assert observed.has_condition("ExitSavePending")(history) == condition
    assert observed.has_condition("ExitTimeout")(history) is None
    assert observed.says("Saving", "^a, .$")(history) == condition
    assert observed.says("Saving", "^b")(history) is None
    assert observed.says("Saved", "^a")(history) is None


def test_a_job_is_over_before_all_its_pods_are() -> None:
    history = [pod(1, "a"), pod(1, "b"), pod(2, "a", outcome=ended(1))]
    assert observed.all_ended([]) is None
    assert observed.all_ended(history) is None
    assert observed.all_ended([*history, pod(3, "b", deleted=True)]) is not None
    assert observed.all_ended([*history, pod(3, "b", outcome=ended(1))]) is not None
