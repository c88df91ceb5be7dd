"""A job that trains, the tokens of its pods, and an API server that knows them."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from dataclasses import dataclass, field
from typing import Any

from perdure.wire.report import Report, TrainerPhase
from perdure_operator.api import names
from perdure_operator.cluster.protocol import Json, Resource
from perdure_operator.cluster.read.cache import Cache
from perdure_operator.cluster.read.records import JobRecord, PodRecord
from perdure_operator.serving.reports.tokens import ReportingPod
from perdure_operator.serving.reviews import TOKEN_REVIEWS
from tests.support.memory_cluster import MemoryCluster
from tests.support.stage import KEY, Stage

FAR = 4_000_000_000
"""A Unix time that no test reaches."""


def trains(cluster: MemoryCluster | None = None) -> Stage:
    """A job with two members in run 1."""
    stage = Stage(cluster)
    for node in ("n1", "n2"):
        stage.node(node)
    stage.apply()
    stage.start()
    stage.run_pods(["n1", "n2"])
    stage.settle()
    return stage


def job_of(stage: Stage) -> JobRecord:
    found = stage.cache.job(KEY)
    assert found is not None
    return found


def members(cache: Cache) -> list[PodRecord]:
    """By rank."""
    return sorted(cache.pods(KEY), key=lambda pod: pod.key)


def sender(stage: Stage, rank: int = 0) -> ReportingPod:
    pod = members(stage.cache)[rank]
    return ReportingPod(KEY, job_of(stage).uid, pod.key[1], pod.uid)


def report(sequence: int = 1, **fields: Any) -> Report:
    known: dict[str, Any] = {"start": "0123abcd", "phase": TrainerPhase.TRAINING, "run": 1, "rank": 0, "step": 10}
    return Report(sequence=sequence, **known | fields)


def token(sent_by: ReportingPod, **claims: Any) -> str:
    """As the API server makes one; only its middle can be read."""
    audience = names.report_audience(sent_by.job[0], sent_by.job_uid)
    pod = {"name": sent_by.name, "uid": sent_by.uid}
    said = {"aud": [audience], "exp": FAR, "kubernetes.io": {"namespace": sent_by.job[0], "pod": pod}} | claims
    return f"head.{urlsafe_b64encode(json.dumps(said).encode()).decode().rstrip('=')}.signature"


@dataclass
class Reviews:
    """The part of an API server that knows tokens: those of `senders`, for the audience of their job."""

    senders: dict[str, ReportingPod] = field(default_factory=dict)
    asked: int = 0
    error: Exception | None = None

    def issue(self, sent_by: ReportingPod) -> str:
        made = token(sent_by)
        self.senders[made] = sent_by
        return made

    async def review(self, resource: Resource, body: Json) -> Json:
        assert resource == TOKEN_REVIEWS
        self.asked += 1
        if self.error is not None:
            raise self.error
        known = self.senders.get(body["spec"]["token"])
        if known is None:
            return {"status": {"user": {}, "error": "invalid bearer token"}}
        pod = "authentication.kubernetes.io/pod-"
        user = {
            "username": f"system:serviceaccount:{known.job[0]}:default",
            "extra": {f"{pod}name": [known.name], f"{pod}uid": [known.uid]},
        }
        audiences = set(body["spec"]["audiences"]) & {names.report_audience(known.job[0], known.job_uid)}
        return {"status": {"authenticated": bool(audiences), "user": user, "audiences": sorted(audiences)}}
