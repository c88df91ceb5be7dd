"""One round for one job: observe, decide, act, schedule the next. Rounds of one job never overlap.

This module decides nothing. A failed round is repeated after a growing delay, or when its decision wanted the next
round. An error in one job never stops another. Called by `leader` once this process leads.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from typing import Final

from perdure.errors import UserError
from perdure_operator.cluster.protocol import ApiError, Conflict
from perdure_operator.cluster.read.observe import Observer
from perdure_operator.cluster.read.records import Key
from perdure_operator.cluster.write.act import Actor
from perdure_operator.decide import decide
from perdure_operator.loop.orphans import Orphans
from perdure_operator.loop.queue import Queue
from perdure_operator.serving.metrics.counted import RoundCounts, RoundOutcome
from perdure_operator.state.decision import Decision, DeletePod
from perdure_operator.state.snapshot import Snapshot

logger = logging.getLogger(__name__)

RESYNC_SECONDS: Final = 300.0
"""Each job has a round this often even if nothing happens: a lost watch event costs minutes, not the job."""

ROUNDS_AT_ONCE: Final = 8
"""Writing rounds in a row that a job may have without a backoff."""


class Worker:
    """Runs rounds."""

    def __init__(
        self,
        queue: Queue,
        observer: Observer,
        actor: Actor,
        orphans: Orphans,
        *,
        jitter: Callable[[], float] = random.random,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._queue = queue
        self._observer = observer
        self._actor = actor
        self._orphans = orphans
        self._jitter = jitter
        self._monotonic = monotonic
        self.counts = RoundCounts()
        self._writing: dict[Key, int] = {}

    async def run(self) -> None:
        """Work forever."""
        while True:
            await self.work(await self._queue.get())
            await asyncio.sleep(0)  # a round without an API call would block the watch

    async def work(self, job: Key) -> None:
        """Run one round of a job from the queue."""
        where, began, outcome = "/".join(job), self._monotonic(), RoundOutcome.ERROR
        try:
            decision = await self._round(job)
        except Conflict as error:
            outcome = RoundOutcome.CONFLICT
            self._retry(
                job,
                logging.DEBUG,
                "trainingjob %s: it has changed meanwhile, so it is looked at again: %s",
                where,
                error,
            )
        except (ApiError, UserError) as error:
            outcome = RoundOutcome.REFUSED
            wait = error.retry_after if isinstance(error, ApiError) else None
            message = "trainingjob %s: this round did not do all its work, the next one goes on: %s"
            self._retry(job, logging.WARNING, message, where, error, at_least=wait or 0.0)
        except Exception:  # noqa: BLE001 - a fault in one job's round must not stop the operator for all others
            message = "trainingjob %s: an error in the operator ended this round, other jobs are not affected"
            self._retry(job, logging.ERROR, message, where, trace=True)
        else:
            outcome = RoundOutcome.WROTE if decision is not None and _writes(decision) else RoundOutcome.UNCHANGED
            self._after(job, decision)
        finally:
            self.counts.ended(outcome, self._monotonic() - began)

    async def _round(self, job: Key) -> Decision | None:
        snapshot = await self._observer.observe(job)
        if snapshot is None:
            await self._orphans.sweep(job)
            return None
        decision = decide(snapshot)
        if _writes(decision):
            self._observer.distrust(job)
            _log(snapshot, decision)
            if decision.requeue_after is not None:  # the time counts even if a write fails
                self._queue.add(job, delay=decision.requeue_after)
            await self._actor.act(snapshot, decision, self._observer.memory(snapshot.uid))
            deleted = any(isinstance(action, DeletePod) for action in decision.actions)
            self._observer.written(job, snapshot.uid, deleted=deleted)
            self.counts.writes.update(_kinds(decision))
        return decision

    def _after(self, job: Key, decision: Decision | None) -> None:
        if decision is None:
            self._writing.pop(job, None)
            self._queue.done(job)
            return
        rounds = self._writing[job] = self._writing.get(job, 0) + 1 if _writes(decision) else 0
        if rounds > ROUNDS_AT_ONCE:
            self._queue.failed(job)
            return
        self._queue.done(job)
        if rounds:
            self._queue.add(job)
            return
        resync = RESYNC_SECONDS * (0.8 + 0.4 * self._jitter())
        self._queue.add(job, delay=resync if decision.requeue_after is None else min(decision.requeue_after, resync))

    def _retry(
        self, job: Key, level: int, message: str, *values: object, trace: bool = False, at_least: float = 0.0
    ) -> None:
        self._observer.distrust(job)
        delay = self._queue.failed(job, at_least=at_least)
        logger.log(level, message + " (next round in %.1f s)", *values, delay, exc_info=trace)


def _kinds(decision: Decision) -> list[str]:
    return ["Status"] * (decision.status is not None) + [action.kind for action in decision.actions]


def _writes(decision: Decision) -> bool:
    return decision.status is not None or bool(decision.actions)


def _log(snapshot: Snapshot, decision: Decision) -> None:
    """Why the job changes, in the policies' words, and what is written for it."""
    actions = [_short(action.kind, getattr(action, "name", "")) for action in decision.actions]
    writes = ", ".join(["status"] * (decision.status is not None) + actions)
    why = "; ".join(decision.reasons) or "its status shows the newest state"
    logger.info("trainingjob %s/%s: %s; the operator writes: %s", snapshot.namespace, snapshot.name, why, writes)
    # `perdure-operator explain` reads this: a report with debug logs can be replayed.
    if logger.isEnabledFor(logging.DEBUG):
        logger.debug("snapshot %s", snapshot.model_dump_json(by_alias=True, exclude_none=True))


def _short(kind: str, name: str) -> str:
    return f"{kind} {name}".strip()
