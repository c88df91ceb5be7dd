"""What reports of thousands of members cost the operator, and whether they keep it from its Lease.

The witnesses are the API server's audit log, which has each renewal of the Lease, /proc, and the answers that the
agents get. Part of `python -m e2e.bench scale`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from threading import Thread
from typing import Any, Final

from e2e.bench import scale_audit
from e2e.bench.report import Figure
from e2e.bench.reporting import Agent, Orders
from e2e.bench.scale_plane import Plane, user_of
from e2e.bench.scale_watch import NotInTime, cpu_seconds
from e2e.harness.local_run import free_port
from e2e.prepare import Progress
from e2e.prepare.basics import REPOSITORY
from perdure_operator.api.names import report_audience
from perdure_operator.decide.health import SILENT
from perdure_operator.serving.certificate import make

QUIET_SECONDS: Final = 60.0
HEARD_SECONDS: Final = 90.0
STEADY_SECONDS: Final = 90.0
FLOOD_SECONDS: Final = 30.0
FLOOD: Final = 800.0
"""Connections a second beside those of the members."""
LATE_SECONDS: Final = 1.0
"""A renewal of the Lease may be so much later than without reports."""
TOKENS_AT_ONCE: Final = 4

Json = dict[str, Any]


@dataclass(frozen=True)
class Endpoint:
    """Where the operator takes reports."""

    port: int
    folder: Path

    @property
    def ca(self) -> Path:
        """What members check it by."""
        return self.folder / "ca.crt"

    @property
    def arguments(self) -> list[str]:
        """The operator's."""
        where = f"https://localhost:{self.port}"
        return [f"--reports-port={self.port}", f"--reports-url={where}", f"--reports-certificate={self.folder}"]


def endpoint(where: Plane) -> Endpoint:
    """One with a certificate of its own."""
    folder = where.server.folder / "reports"
    folder.mkdir()
    certificate, key = make(["localhost"], datetime.now(UTC))
    for name, content in (("tls.crt", certificate), ("tls.key", key), ("ca.crt", certificate)):
        (folder / name).write_bytes(content)
    return Endpoint(free_port(), folder)


def figures(where: Plane, operator: str, pid: int, to: Endpoint, progress: Progress) -> list[Figure]:
    """With the members of all jobs that run there."""
    agents = _agents(where)
    quiet = _spent(where, operator, pid, QUIET_SECONDS)
    progress.say(f"  {len(agents)} members report")
    orders = Orders(to.port, str(to.ca), agents, HEARD_SECONDS + STEADY_SECONDS, FLOOD, FLOOD_SECONDS)
    with _reporting(where, orders) as said:
        begun = time.time()
        time.sleep(HEARD_SECONDS)
        steady = _spent(where, operator, pid, STEADY_SECONDS)
        progress.say(f"  and {FLOOD:g} more connections come each second")
        flood_began = time.time()
        flooded = _spent(where, operator, pid, FLOOD_SECONDS - 1)
    heard = [one["at"] - begun for one in said if one["heard"] == len(agents)]
    if not heard:
        raise NotInTime(
            f"{said[-1]['heard']} of {len(agents)} members were heard in {HEARD_SECONDS + STEADY_SECONDS:g} s"
        )
    answered = sum(one[status] for one in said if one["at"] > flood_began for status in one if status.isdigit())
    gap, before = quiet.gap + LATE_SECONDS, "without reports"
    return [
        Figure(
            f"{len(agents)} members: all heard by a leader that knew none",
            "s",
            (heard[0],),
            SILENT.total_seconds(),
            "silent",
        ),
        Figure(
            "  longest time between renewals of the Lease", "s", (steady.gap,), gap, f"{before}, and {LATE_SECONDS:g} s"
        ),
        Figure("  the operator's CPU", "cores", (steady.cores,), quiet.cores, before),
        Figure(f"{FLOOD:g} connections a second: answered", "1/s", (answered / FLOOD_SECONDS,)),
        Figure(
            "  longest time between renewals of the Lease",
            "s",
            (flooded.gap,),
            gap,
            f"{before}, and {LATE_SECONDS:g} s",
        ),
        Figure("  the operator's CPU", "cores", (flooded.cores,), quiet.cores, before),
    ]


def _agents(where: Plane) -> tuple[Agent, ...]:
    """The members of all jobs, with tokens as the kubelet would have them."""
    listed = where.server.ask("/apis/perdure.dev/v1alpha1/trainingjobs")["items"]
    members = [(job, one) for job in listed for one in job["status"]["current"]["plan"]["members"]]
    with ThreadPoolExecutor(TOKENS_AT_ONCE) as pool:
        tokens = pool.map(lambda found: _token(where, *found), members)
    return tuple(Agent(token, one["rank"]) for token, (_, one) in zip(tokens, members, strict=True))


def _token(where: Plane, job: Json, member: Json) -> str:
    namespace = job["metadata"]["namespace"]
    audience = report_audience(namespace, job["metadata"]["uid"])
    pod = {"kind": "Pod", "apiVersion": "v1", "name": member["name"], "uid": member["uid"]}
    body = {"spec": {"audiences": [audience], "boundObjectRef": pod, "expirationSeconds": 3600}}
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/default/token"
    return str(where.server.ask(path, "POST", body)["status"]["token"])


@contextmanager
def _reporting(where: Plane, orders: Orders) -> Iterator[list[Json]]:
    """The agents' process, and what it has said, complete behind the block."""
    path, said = where.server.folder / "orders.json", list[Json]()
    orders.write(path)
    with subprocess.Popen(
        [sys.executable, "-m", "e2e.bench.reporting", path], stdout=subprocess.PIPE, cwd=REPOSITORY
    ) as process:
        assert process.stdout is not None
        reader = Thread(target=lambda lines: said.extend(map(json.loads, lines)), args=(process.stdout,))
        reader.start()
        try:
            yield said
        finally:
            reader.join(FLOOD_SECONDS)
            process.kill()


@dataclass(frozen=True)
class Spent:
    """What the operator did in a while."""

    gap: float
    """The longest time between two renewals of its Lease."""
    cores: float


def _spent(where: Plane, operator: str, pid: int, seconds: float) -> Spent:
    began, before = time.time(), cpu_seconds(pid)
    time.sleep(seconds)
    cores = (cpu_seconds(pid) - before) / (time.time() - began)
    seen = scale_audit.requests(where.server.audit_log, began)
    renewals = [one.received for one in seen if one.user == user_of(operator) and one.resource == scale_audit.LEASES]
    gaps = [after - one for one, after in pairwise([began, *sorted(renewals), time.time()])]
    return Spent(max(gaps), cores)
