"""Agents of thousands of members in one process, as the operator hears them: `python -m e2e.bench.reporting FILE`.

Each reports when the operator's answers ask for it, by the agent's own timing. In the end, many connections a second
more come from peers that wait for nothing. Writes a line of JSON for each second to stdout.
"""

from __future__ import annotations

import asyncio
import json
import random
import ssl
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from perdure.agent.sender import JITTER_SECONDS, SendLimits, Timing
from perdure.wire.report import REPORT_PATH, Report, TrainerPhase, read_answer, write_report

LIMITS: Final = SendLimits()
AT_ONCE: Final = 400
"""Connections of this process at a time: it is no bottleneck, and has files for them."""
HOST: Final = "localhost"
PEERS: Final = 250
"""Addresses of this machine that the connections come from: members have addresses of their own."""


@dataclass(frozen=True)
class Agent:
    """A member that reports."""

    token: str
    rank: int


@dataclass(frozen=True)
class Orders:
    """What this process does."""

    port: int
    ca: str
    """The file with the authorities."""
    agents: tuple[Agent, ...]
    seconds: float
    """How long the agents report before the flood."""
    flood: float
    """Connections a second that come then, beside those of the agents: each with the token of one of them."""
    flood_seconds: float

    def write(self, path: Path) -> None:
        """For `read`."""
        path.write_text(json.dumps(asdict(self)))


def read(path: Path) -> Orders:
    """The orders in that file."""
    raw: dict[str, Any] = json.loads(path.read_text())
    return Orders(**{**raw, "agents": tuple(Agent(**one) for one in raw["agents"])})


class Agents:
    """All of them, in one event loop."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._context.load_verify_locations(orders.ca)
        self._free = asyncio.Semaphore(AT_ONCE)
        self._random = random.Random(0)  # noqa: S311 - nothing secret
        self._statuses = Counter[str]()
        self._heard = set[int]()
        """The numbers of agents of which a report has arrived."""

    async def run(self) -> None:
        """Until the time is over."""
        async with asyncio.timeout(self._orders.seconds + self._orders.flood_seconds):
            async with asyncio.TaskGroup() as group:
                group.create_task(self._say())
                group.create_task(self._flood(group))
                for number, agent in enumerate(self._orders.agents):
                    group.create_task(self._report(number, agent))

    async def _say(self) -> None:
        while True:
            await asyncio.sleep(1)
            print(json.dumps({"at": time.time(), "heard": len(self._heard), **self._statuses}), flush=True)
            self._statuses.clear()

    async def _flood(self, group: asyncio.TaskGroup) -> None:
        await asyncio.sleep(self._orders.seconds)
        begun, sent = time.monotonic(), 0
        while True:
            due = int((time.monotonic() - begun) * self._orders.flood)
            for _ in range(due - sent):
                agent = self._random.choice(self._orders.agents)
                group.create_task(self._post(agent, 1))
            sent = due
            await asyncio.sleep(0.01)

    async def _report(self, number: int, agent: Agent) -> None:
        timing, sequence = Timing(time.monotonic() + self._random.uniform(0, JITTER_SECONDS)), 0
        while True:
            await asyncio.sleep(timing.at - time.monotonic())
            sequence += 1
            jitter = self._random.uniform(0, JITTER_SECONDS)
            status, body = await self._post(agent, sequence)
            now = time.monotonic()
            if status == "200":
                self._heard.add(number)
                timing = timing.answered(now, read_answer(body).next_seconds)
            elif status == "503":
                timing = timing.elsewhere(now, 1 + jitter / JITTER_SECONDS)
            else:
                timing = timing.failed(now, jitter)

    async def _post(self, agent: Agent, sequence: int) -> tuple[str, str]:
        """The status of the answer, or what happened instead, and its body."""
        report = Report("0123abcd", sequence, TrainerPhase.TRAINING, 1, rank=agent.rank, step=sequence, epoch=0)
        body = write_report(report).encode()
        head = f"POST {REPORT_PATH} HTTP/1.1\r\nHost: operator\r\nAuthorization: Bearer {agent.token}\r\n"
        peer = f"127.0.{self._random.randrange(PEERS)}.{self._random.randrange(1, PEERS)}"
        try:
            async with self._free:
                async with asyncio.timeout(LIMITS.connect):
                    reader, writer = await asyncio.open_connection(
                        "127.0.0.1", self._orders.port, ssl=self._context, server_hostname=HOST, local_addr=(peer, 0)
                    )
                async with asyncio.timeout(LIMITS.request):
                    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
                    answer = await reader.read()
                writer.close()
        except TimeoutError:
            status, text = "no answer", ""
        except OSError:
            status, text = "no connection", ""
        else:
            said, _, text = answer.decode().partition("\r\n\r\n")
            status = said.split(" ", 2)[1] if said else "closed"
        self._statuses[status] += 1
        return status, text


def main() -> None:
    """Report as FILE says."""
    try:
        asyncio.run(Agents(read(Path(sys.argv[1]))).run())
    except TimeoutError:
        return


if __name__ == "__main__":
    main()
