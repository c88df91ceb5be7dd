"""Jobs as `kubectl perdure` reads them: objects that the real operator has written into a cluster in memory."""

from __future__ import annotations

import asyncio
from typing import Any

from perdure.wire import CommitRef, ExitKind, HandoverRecord, HandoverWord, Outcome, write_outcome
from perdure_operator.cli.kubectl import reading
from perdure_operator.cli.kubectl.job import JobSeen
from perdure_operator.cluster.protocol import JOBS, NODES
from perdure_operator.cluster.read import parse
from tests.support.raw import job
from tests.support.stage import KEY, Stage


def training(**spec: Any) -> Stage:
    """A job of two members on n1 and n2, which trains; n3 is free. It waits 30 s for standbys."""
    stage = Stage()
    for name in ("n1", "n2", "n3"):
        stage.node(name)
    stage.apply(job(**{"disruption": {"replacementTimeoutSeconds": 30}} | spec))
    stage.start()
    stage.wait(2)
    stage.run_pods(["n1", "n2"])
    stage.wait(2)
    return stage


def cordoned(**spec: Any) -> Stage:
    """Such a job after n2 was cordoned: a new member is awaited."""
    stage = training(**spec)
    stage.cordon("n2")
    stage.settle()
    stage.wait(1.2)
    return stage


def planned(**spec: Any) -> Stage:
    """Such a job once the new member is Ready on n3: the next run is planned."""
    stage = cordoned(**spec)
    stage.run_pods(["n3"])
    stage.wait(1)
    return stage


def moved(**spec: Any) -> Stage:
    """Such a job ten minutes after n2 was drained: the new member took over live, and n2 is back."""
    stage = planned(**spec)
    went = (HandoverRecord(2, HandoverWord.GO, parts={"pause": 0.06}),)
    ended = Outcome(ExitKind.HANDED_OVER, 1, 1, 453, commit=CommitRef(seq=9, step=450), opened=2, handovers=went)
    stage.end_pod(stage.names()[1], write_outcome(ended))
    stage.settle()
    stage.cluster.change(NODES, "", "n2", lambda raw: raw["spec"].update(unschedulable=False))
    stage.wait(600)
    return stage


def moving_again(**spec: Any) -> Stage:
    """That job while n1 is drained: a new member is awaited on n2."""
    stage = moved(**spec)
    stage.cordon("n1")
    stage.settle()
    stage.wait(1.2)
    return stage


def eventful(**spec: Any) -> Stage:
    """That job after that move, a save, the death of a member without notice an hour later, and its end."""
    stage = moving_again(**spec)
    stage.run_pods(["n2"])
    stage.wait(1)
    went = (HandoverRecord(3, HandoverWord.GO, parts={"pause": 0.09}),)
    saved = CommitRef(seq=40, step=8700)
    ended = Outcome(ExitKind.HANDED_OVER, 2, 0, 8712, commit=saved, opened=3, handovers=went)
    stage.end_pod(stage.names()[0], write_outcome(ended))
    stage.settle()
    stage.cluster.change(NODES, "", "n1", lambda raw: raw["spec"].update(unschedulable=False))
    stage.wait(3600)
    dead, left = stage.names()
    stage.end_pod(dead, "", exit_code=137)
    stage.settle()
    stage.wait(2)
    lost = Outcome(ExitKind.PEER_LOST, 3, 1, 61230, commit=CommitRef(seq=210, step=61200), opened=3)
    stage.end_pod(left, write_outcome(lost), exit_code=1)
    stage.settle()
    for _ in range(6):
        stage.wait(5)
        stage.run_pods(["n1", "n3"])
    return stage


def seen(stage: Stage) -> JobSeen:
    """As the command reads it."""
    return read(stage, asyncio.run(stage.cluster.get(JOBS, *KEY)))


def read(stage: Stage, raw: dict[str, Any]) -> JobSeen:
    """This object, with the job's pods."""
    return JobSeen(reading.job_of(raw), tuple(parse.pod(one) for one in stage.pods()), stage.now)
