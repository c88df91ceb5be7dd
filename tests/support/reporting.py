"""A job that trains, the tokens of its pods, and an API server that knows them."""

from __future__ import annotations

import asyncio
import json
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256

from perdure.wire.report import Report, TrainerPhase
from perdure_operator.api import names
from perdure_operator.cluster.protocol import Json, NotFound, Resource
from perdure_operator.cluster.read.cache import Cache
from perdure_operator.cluster.read.records import JobRecord, PodRecord
from perdure_operator.serving.reports.published_keys import CONFIGURATION_PATH, KEYS_PATH
from perdure_operator.serving.reports.tokens import ReportingPod
from perdure_operator.serving.reviews import TOKEN_REVIEWS
from tests.support.memory_cluster import MemoryCluster
from tests.support.raw import job
from tests.support.stage import KEY, Stage

ISSUER = "https://kubernetes.default.svc"
FAR = 4_000_000_000
"""A Unix time that no test reaches."""


def trains(cluster: MemoryCluster | None = None) -> Stage:
    """A job with two members in run 1."""
    return trains_as(2, cluster)


def trains_as(members: int, cluster: MemoryCluster | None = None) -> Stage:
    """A job with so many members in run 1, each on a node of its own."""
    stage, nodes = Stage(cluster), [f"n{number + 1}" for number in range(members)]
    for node in nodes:
        stage.node(node)
    stage.apply(job(replicas=members))
    stage.start()
    stage.run_pods(nodes)
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


def claims_of(sent_by: ReportingPod, **claims: Any) -> dict[str, Any]:
    """What the API server's token for this pod says."""
    audience = names.report_audience(sent_by.job[0], sent_by.job_uid)
    pod = {"name": sent_by.name, "uid": sent_by.uid}
    said = {"aud": [audience], "exp": FAR, "kubernetes.io": {"namespace": sent_by.job[0], "pod": pod}}
    return said | {"iss": ISSUER, "nbf": 0, "sub": f"system:serviceaccount:{sent_by.job[0]}:default"} | claims


def _b64(data: bytes) -> str:
    return urlsafe_b64encode(data).decode().rstrip("=")


def _number(value: int) -> str:
    return _b64(value.to_bytes((value.bit_length() + 7) // 8))


@dataclass
class SigningKey:
    """A key of an API server."""

    id: str
    private: RSAPrivateKey | EllipticCurvePrivateKey

    def sign(self, claims: Mapping[str, Any], **head: Any) -> str:
        """A token with these claims."""
        algorithm = "RS256" if isinstance(self.private, RSAPrivateKey) else "ES256"
        known = {"alg": algorithm, "kid": self.id} | head
        signed = f"{_b64(json.dumps(known).encode())}.{_b64(json.dumps(dict(claims)).encode())}"
        if isinstance(self.private, RSAPrivateKey):
            return f"{signed}.{_b64(self.private.sign(signed.encode(), PKCS1v15(), SHA256()))}"
        halves = decode_dss_signature(self.private.sign(signed.encode(), ECDSA(SHA256())))
        return f"{signed}.{_b64(b''.join(half.to_bytes(32) for half in halves))}"

    @property
    def published(self) -> dict[str, Any]:
        """As in a JSON Web Key Set."""
        if isinstance(self.private, RSAPrivateKey):
            public = self.private.public_key().public_numbers()
            return {"kty": "RSA", "kid": self.id, "alg": "RS256", "n": _number(public.n), "e": _number(public.e)}
        point = self.private.public_key().public_numbers()
        x, y = (_b64(value.to_bytes(32)) for value in (point.x, point.y))
        return {"kty": "EC", "kid": self.id, "alg": "ES256", "crv": "P-256", "x": x, "y": y}


def published(*keys: SigningKey, issuer: str = ISSUER) -> dict[str, Json]:
    """What an API server with these keys publishes, by path."""
    return {CONFIGURATION_PATH: {"issuer": issuer}, KEYS_PATH: {"keys": [key.published for key in keys]}}


@dataclass
class Reviews:
    """The part of an API server that knows tokens: those of `senders`, for the audience of their job."""

    senders: dict[str, ReportingPod] = field(default_factory=dict)
    asked: int = 0
    error: Exception | None = None
    published: dict[str, Json] = field(default_factory=dict)
    """What it publishes of itself, by path; {}: it keeps its keys to itself."""
    looked: list[str] = field(default_factory=list)
    """The paths that were asked for."""
    clock: Callable[[], float] = time.time

    def server_time(self) -> datetime:
        return datetime.fromtimestamp(self.clock(), UTC)

    async def document(self, path: str) -> Json:
        self.looked.append(path)
        await asyncio.sleep(0)  # others go on meanwhile, as with a real one
        if path not in self.published:
            raise NotFound(f"GET {path}: 404")
        return self.published[path]

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
