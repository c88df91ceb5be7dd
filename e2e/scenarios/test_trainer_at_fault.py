"""A script that raises fails within its budget and says why; one that hangs cannot hold up a drain, and one that new
members cannot import ends no training."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from e2e.harness import observed
from e2e.harness.drain import uncordon
from e2e.harness.handover import Way
from e2e.harness.lab import Lab
from e2e.harness.watching import Object, Seen
from e2e.scenarios.conftest import Train, Undisturbed
from e2e.scenarios.training import Config, Trouble, nothing_lost

pytestmark = pytest.mark.cluster


def test_a_rank_that_raises_fails_the_job_with_its_own_traceback(train: Train) -> None:
    raising = Trouble(
        script="raising.py",
        environ={"RAISE_AFTER": "2", "PACE_SECONDS": "0"},
        spec={"failure": {"maxCodeFailures": 1}},
    )
    with train(trouble=raising) as training:
        status = training.fails()
        failed = training.shows("TooManyCodeFailures")
    assert status["failures"]["code"] == 2
    assert status["failures"].get("infrastructure", 0) == 0
    assert failed["type"] == "Failed"
    assert "ValueError: sample 17 has no label" in failed["message"]
    assert "raising.py" in failed["message"]
    assert "peer" not in failed["message"].lower()


@pytest.mark.chaos
def test_a_hanging_trainer_holds_up_a_drain_no_longer_than_its_exit_timeout(lab: Lab, train: Train) -> None:
    hanging = Trouble(
        script="hanging.py",
        environ={"SAVE_AT": "10", "HANG_AFTER": "20", "PACE_SECONDS": "0"},
        spec={"checkpoint": {"everySteps": None, "everySeconds": 3600}, "disruption": {"exitTimeoutSeconds": 15}},
    )
    with train(trouble=hanging) as training:
        training.trains(steps=20)
        with lab.drain(training.node(rank=1)) as drain:
            drained = drain.finish()
        timeout = training.shows("ExitTimeout")
        status = training.completes()
    assert drained.status == 0, drained.output
    assert timeout["type"] == "Saved"
    assert timeout["status"] == "False"
    assert status["stepsLost"] == 10
    verdict = training.verdict()
    assert (verdict.steps_lost, verdict.samples_lost, verdict.samples_repeated) == (10, 0, 0)


@pytest.mark.chaos
def test_a_rank_that_hangs_is_ended_by_its_agent_and_costs_no_finished_step(
    train: Train, undisturbed: Undisturbed
) -> None:
    hanging = Trouble(
        script="hanging.py",
        environ={"SAVE_AT": "10", "HANG_AFTER": "30", "HANG_RANK": "1", "PACE_SECONDS": "0.3"},
        spec={"checkpoint": {"everySteps": None, "everySeconds": 3600}, "failure": {"progressTimeoutSeconds": 20}},
    )
    with train(trouble=hanging) as training:
        status = training.completes()
        ended = training.says("Saved", "NoProgress")
    assert ended["status"] == "False"
    assert status["failures"]["code"] == 1
    assert status["failures"].get("infrastructure", 0) == 0
    verdict = training.verdict()  # the rank that was killed has not written what it traced of its last step
    assert (verdict.steps_lost, status.get("stepsLost", 0), verdict.samples_repeated) == (0, 0, 0)
    assert verdict.weights == undisturbed(Config()).weights


@pytest.mark.chaos
def test_a_drain_whose_new_members_cannot_import_the_script_ends_no_training(
    lab: Lab, train: Train, undisturbed: Undisturbed
) -> None:
    slow = Trouble(script="unimportable.py", environ={"PACE_SECONDS": "5"})
    with train(trouble=slow) as training:
        training.trains(steps=2)
        node = training.node(rank=1)
        with lab.drain(node) as drain:
            training.watch.wait("new members fail three times", three_have_failed, seconds=240)
            told = training.says("Disrupted", "waiting until .* is Ready")
            assert drain.still_waits()
            assert training.run() == 1
        uncordon(lab.kubectl, [node])
        training.hurries()
        status = training.completes()
    assert told["status"] == "True"
    assert [status.get("failures", {}).get(kind, 0) for kind in ("code", "infrastructure")] == [0, 0]
    assert set(training.ways()) <= {Way.LIVE}  # whoever starts again cannot import the script
    assert training.verdict() == nothing_lost(undisturbed(Config()))


def three_have_failed(history: Sequence[Seen]) -> Object | None:
    """The status, once three pods that joined have ended with an error."""
    ended = {
        seen.uid
        for seen in history
        if seen.kind == "Pod" and observed.assignment(seen.object).get("run", 0) > 1 and observed.is_over(seen.object)
    }
    return dict(observed.status(history)) if len(ended) >= 3 else None
