"""What a container reports changes words and numbers of a status, and no act of the operator: nothing is committed,
created, moved or deleted because of a report, whatever it says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import cache

from hypothesis import given
from hypothesis import strategies as st

from perdure.wire.report import Report, read_report, write_report
from perdure_operator.api.reasons import ConditionType
from perdure_operator.api.status import TrainingJobStatus
from perdure_operator.serving.reports.heard import Received
from perdure_operator.serving.reports.progress import shown
from perdure_operator.serving.reports.tokens import ReportingPod
from perdure_operator.state.decision import Action
from tests.support.jobs import Job, job, written
from tests.unit.runtime.wire.test_report import reports

CORDONED = job().running().cordon("n1").settle().after(1).settle()
BEFORE = {
    "trains": job().running(),
    "its node leaves": job().running().cordon("n1"),
    "a standby starts": CORDONED,
    "a standby is ready": CORDONED.ready(),
    "a hand-over is offered": CORDONED.ready().settle(),
    "a member died": job().running().exited(0, code=137),
    "asked to save": job().running().leaving("n1").after(30),
}
AFTER: dict[str, Callable[[Job], Job]] = {
    "nothing": lambda here: here,
    "an hour": lambda here: here.after(3600),
    "a cordon": lambda here: here.cordon("n2").settle().after(1),
    "a death": lambda here: here.exited(1, code=137),
    "a suspension": lambda here: here.spec(suspend=True),
}
SAID = {"progress", "last_save", "time_account"}
"""What a report may change."""
IN_WORDS = {"Running", "Progressing", "CheckpointFresh", "StorageReachable"}
"""Conditions that follow from reports; Running only in its words."""
lies = st.lists(
    st.tuples(reports, st.sampled_from([1, 1, 1, 2]), st.integers(0, 1 << 40), st.booleans()), min_size=1, max_size=3
)


@given(st.sampled_from(list(BEFORE)), st.sampled_from(list(AFTER)), lies)
def test_a_lie_changes_nothing_that_the_operator_does(
    story: str, later: str, said: list[tuple[Report, int, int, bool]]
) -> None:
    here = told = BEFORE[story]
    for number, (report, run, step, speaks) in enumerate(said):
        lie = read_report(write_report(replace(report, run=run, step=step)))
        told = hears(told, lie, 60.0 * number, speaks=speaks)
    assert told.now.model_dump(exclude=SAID) == here.now.model_dump(exclude=SAID)
    deceived = AFTER[later](told)
    for acts, status in honest(story, later):
        assert written(deceived.plan()) == acts
        deceived = deceived.step()
        assert rest(deceived.now) == status


@cache
def honest(story: str, later: str) -> tuple[tuple[tuple[Action, ...], dict[str, object]], ...]:
    """What the operator does in two rounds that heard of nothing, and the status behind each."""
    here, rounds = AFTER[later](BEFORE[story]), []
    for _ in range(2):
        acts, here = written(here.plan()), here.step()
        rounds.append((acts, rest(here.now)))
    return tuple(rounds)


def hears(here: Job, report: Report, seconds: float, *, speaks: bool) -> Job:
    """With the report in status, if it is shown: of the member that has rank 0, or of the last one."""
    plan = here.run_plan
    assert plan is not None
    member = plan.members[0 if speaks else -1]
    sender = ReportingPod(("ns", "digits"), "job", member.name, member.uid)
    received = Received(sender, report, speaks, here.snapshot.now + timedelta(seconds=seconds))
    found = shown(here.now, here.snapshot.spec.checkpoint, received)
    return here.having(status=found.status) if found else here


def rest(status: TrainingJobStatus) -> dict[str, object]:
    """All but what a report may change."""
    conditions = [one for one in status.conditions if one.type not in IN_WORDS]
    running = status.find(ConditionType.RUNNING)
    return {
        **status.model_dump(exclude={*SAID, "conditions"}),
        "conditions": conditions,
        "running": running.status if running else None,
    }
