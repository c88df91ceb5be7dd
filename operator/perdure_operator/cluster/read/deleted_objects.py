"""What is remembered of deleted objects: that they are gone, how a deleted pod of ours ended, and who may still tell.

A LIST or an answer may arrive after the deletion it knows nothing of; an autoscaler deletes a finished pod within
seconds, and its outcome with it. Both memories are bounded by what lives, not by a number that one large deletion
overflows. Called by `cache`, and by `observe` for those that a live read has missed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from perdure_operator.api import names
from perdure_operator.cluster.read.records import JobRecord, Key, PodRecord

SPARE: Final = 1_000
"""Deletions remembered in any case: as many members as one job may have."""


PATIENCE: Final = timedelta(seconds=2)
"""So much later than a LIST the watch may tell of a deletion; a watch that starts anew never does."""


@dataclass(frozen=True, slots=True)
class _Deleted:
    version: int
    mark: int


class DeletedObjects:
    """Deleted uids, in two generations of at least as many as have lived at once: the older one is dropped whole."""

    def __init__(self) -> None:
        self._young: dict[str, _Deleted] = {}
        self._old: dict[str, _Deleted] = {}
        self._most_alive = 0

    def __len__(self) -> int:
        """Uids remembered: at most twice as many as have lived at once, and SPARE."""
        return len(self._young) + len(self._old)

    def __contains__(self, uid: str) -> bool:
        """Whether it is remembered to be deleted."""
        return uid in self._young or uid in self._old

    def bury(self, uid: str, version: int, mark: int, *, alive: int) -> None:
        """Remember; `alive` is how many objects there are besides."""
        self._most_alive = max(self._most_alive, alive + 1)
        if len(self._young) >= self._most_alive + SPARE:
            self._old, self._young, self._most_alive = self._young, {}, alive + 1
        self._young[uid] = _Deleted(version, mark)

    def hides(self, uid: str, version: int, since: int | None) -> bool:
        """Whether news of this version are older than the deletion.

        Newer ones are believed: to a watch with a selector a label that is removed looks like a deletion, and the label
        may come back. So is a live read that began after the deletion was known: a restore turns versions back.
        """
        tomb = self._young.get(uid) or self._old.get(uid)
        return tomb is not None and version <= tomb.version and (since is None or tomb.mark > since)


class Gone:
    """Last states of deleted pods: those that a job's status names or will name, and a few whose job is unknown."""

    def __init__(self) -> None:
        self._of_jobs: dict[Key, dict[str, PodRecord]] = defaultdict(dict)
        self._strangers: dict[str, PodRecord] = {}

    def of(self, job: Key) -> Iterable[PodRecord]:
        """Of the job and of earlier ones of its name."""
        return self._of_jobs[job].values() if job in self._of_jobs else ()

    def get(self, uid: str, job: Key) -> PodRecord | None:
        """The last state of that pod."""
        return self._strangers.get(uid) or (self._of_jobs[job].get(uid) if job in self._of_jobs else None)

    def add(self, pod: PodRecord, job: JobRecord | None) -> None:
        """Remember a pod; `job` is what is known by the name in its label."""
        if job is not None and pod.view.owner_uid == job.uid:
            if _of_interest(pod, job):
                kept = self._of_jobs[job.key]
                kept[pod.uid] = pod
                _bound(kept, len(job.members) + SPARE)
        elif pod.view.owner_uid:  # the streams of pods and jobs overtake each other
            self._strangers[pod.uid] = pod
            _bound(self._strangers, SPARE)

    def remove(self, uid: str, job: Key | None) -> None:
        """The pod is back."""
        self._strangers.pop(uid, None)
        if job in self._of_jobs:
            self._of_jobs[job].pop(uid, None)

    def job_is(self, job: JobRecord, *, new: bool) -> None:
        """Status has recorded the pods that it no longer names; `new` where the job was not known before."""
        if new:
            adopted = [pod for pod in self._strangers.values() if pod.view.owner_uid == job.uid]
            for pod in adopted:
                del self._strangers[pod.uid]
                self._of_jobs[job.key][pod.uid] = pod
        if job.key in self._of_jobs:
            kept = {uid: pod for uid, pod in self._of_jobs[job.key].items() if _of_interest(pod, job)}
            self._replace(job.key, kept)

    def job_is_gone(self, job: JobRecord) -> None:
        """Nobody asks for its pods any more."""
        if job.key in self._of_jobs:
            kept = {uid: pod for uid, pod in self._of_jobs[job.key].items() if pod.view.owner_uid != job.uid}
            self._replace(job.key, kept)

    def _replace(self, job: Key, kept: dict[str, PodRecord]) -> None:
        if kept:
            self._of_jobs[job] = kept
        else:
            del self._of_jobs[job]


class PendingTerminations:
    """Pods that a live read did not show before the watch told how they ended."""

    def __init__(self) -> None:
        self._missed: dict[str, tuple[datetime, int]] = {}

    def missed(self, pod: PodRecord, now: datetime) -> None:
        """A live read did not show it; `pod` is the last that was known."""
        self._missed.pop(pod.uid, None)
        self._missed[pod.uid] = (now, pod.version)
        while now - next(iter(self._missed.values()))[0] >= PATIENCE:
            del self._missed[next(iter(self._missed))]

    def awaited(self, pod: PodRecord, now: datetime) -> bool:
        """Whether the watch may still tell how it ended; `pod` is the last that is known now."""
        since, version = self._missed.get(pod.uid, (now - PATIENCE, 0))
        return now - since < PATIENCE and pod.version <= version and not _ended(pod)


def _ended(pod: PodRecord) -> bool:
    return pod.view.terminated is not None or pod.view.phase in ("Succeeded", "Failed")


def _of_interest(pod: PodRecord, job: JobRecord) -> bool:
    """Status names it, or does not know its number yet."""
    if pod.view.owner_uid != job.uid:
        return False
    following = job.status.next_member if job.status is not None else 0
    return pod.key[1] in job.members or names.member_number(pod.key[1]) >= following


def _bound(memory: dict[str, PodRecord], most: int) -> None:
    """The oldest gives way."""
    while len(memory) > most:
        del memory[next(iter(memory))]
