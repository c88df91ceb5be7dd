"""Memory of deleted objects: their uids, the last states of our pods, and pods whose end the watch may still report.

A LIST or an answer that began before a deletion may arrive after it. An autoscaler deletes a finished pod, and its
outcome, within seconds. Both memories are bounded by the number of living objects, so that one large deletion does not
overflow them. Called by `cache`, and by `live` for pods that a live read missed.
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
"""Deletions remembered beyond the number of living objects: as many members as one job may have."""


PATIENCE: Final = timedelta(seconds=2)
"""How much later than a LIST the watch may report a deletion; a restarted watch never does."""


@dataclass(frozen=True, slots=True)
class _Deleted:
    version: int
    mark: int


class DeletedObjects:
    """Deleted uids in two generations, each of at least as many as ever lived at once. The older one is dropped
    whole."""

    def __init__(self) -> None:
        self._young: dict[str, _Deleted] = {}
        self._old: dict[str, _Deleted] = {}
        self._most_alive = 0

    def __len__(self) -> int:
        """Uids remembered: at most twice the number that lived at once plus SPARE."""
        return len(self._young) + len(self._old)

    def __contains__(self, uid: str) -> bool:
        """Whether the object was deleted, as far as remembered."""
        return uid in self._young or uid in self._old

    def add(self, uid: str, version: int, mark: int, *, alive: int) -> None:
        """Remember a deletion; `alive` is the number of living objects of the kind."""
        self._most_alive = max(self._most_alive, alive + 1)
        if len(self._young) >= self._most_alive + SPARE:
            self._old, self._young, self._most_alive = self._young, {}, alive + 1
        self._young[uid] = _Deleted(version, mark)

    def hides(self, uid: str, version: int, since: int | None) -> bool:
        """Whether a state of this version is older than the deletion.

        A newer state wins: for a watch with a selector, a removed label looks like a deletion, and the label may come
        back. So does a live read that began after the deletion was known, because a restored etcd has lower versions.
        """
        deleted = self._young.get(uid) or self._old.get(uid)
        return deleted is not None and version <= deleted.version and (since is None or deleted.mark > since)


class DeletedPods:
    """Last states of deleted pods: those that a job's status names or will name, and some whose job is unknown."""

    def __init__(self) -> None:
        self._of_jobs: dict[Key, dict[str, PodRecord]] = defaultdict(dict)
        self._strangers: dict[str, PodRecord] = {}

    def of(self, job: Key) -> Iterable[PodRecord]:
        """Deleted pods of the job and of earlier jobs of its name."""
        return self._of_jobs[job].values() if job in self._of_jobs else ()

    def get(self, uid: str, job: Key) -> PodRecord | None:
        """The last state of that pod, or None."""
        return self._strangers.get(uid) or (self._of_jobs[job].get(uid) if job in self._of_jobs else None)

    def add(self, pod: PodRecord, job: JobRecord | None) -> None:
        """Remember a pod; `job` is the known job with the name in its label."""
        if job is not None and pod.view.owner_uid == job.uid:
            if _of_interest(pod, job):
                kept = self._of_jobs[job.key]
                kept[pod.uid] = pod
                _bound(kept, len(job.members) + SPARE)
        elif pod.view.owner_uid:  # its job may be unknown yet: the watches of pods and jobs overtake each other
            self._strangers[pod.uid] = pod
            _bound(self._strangers, SPARE)

    def remove(self, uid: str, job: Key | None) -> None:
        """Forget a pod that is back."""
        self._strangers.pop(uid, None)
        if job in self._of_jobs:
            self._of_jobs[job].pop(uid, None)

    def job_is(self, job: JobRecord, *, new: bool) -> None:
        """Forget pods that the job's status no longer needs; `new`: the job was unknown before."""
        if new:
            adopted = [pod for pod in self._strangers.values() if pod.view.owner_uid == job.uid]
            for pod in adopted:
                del self._strangers[pod.uid]
                self._of_jobs[job.key][pod.uid] = pod
        if job.key in self._of_jobs:
            kept = {uid: pod for uid, pod in self._of_jobs[job.key].items() if _of_interest(pod, job)}
            self._replace(job.key, kept)

    def job_is_gone(self, job: JobRecord) -> None:
        """Forget the pods of a deleted job."""
        if job.key in self._of_jobs:
            kept = {uid: pod for uid, pod in self._of_jobs[job.key].items() if pod.view.owner_uid != job.uid}
            self._replace(job.key, kept)

    def _replace(self, job: Key, kept: dict[str, PodRecord]) -> None:
        if kept:
            self._of_jobs[job] = kept
        else:
            del self._of_jobs[job]


class PendingTerminations:
    """Pods that a live read missed before the watch reported how they ended."""

    def __init__(self) -> None:
        self._missed: dict[str, tuple[datetime, int]] = {}

    def missed(self, pod: PodRecord, now: datetime) -> None:
        """Record that a live read missed a pod; `pod` is its last known state."""
        self._missed.pop(pod.uid, None)
        self._missed[pod.uid] = (now, pod.version)
        while now - next(iter(self._missed.values()))[0] >= PATIENCE:
            del self._missed[next(iter(self._missed))]

    def awaited(self, pod: PodRecord, now: datetime) -> bool:
        """Whether the watch may still report how it ended; `pod` is its last known state."""
        since, version = self._missed.get(pod.uid, (now - PATIENCE, 0))
        return now - since < PATIENCE and pod.version <= version and not _ended(pod)


def _ended(pod: PodRecord) -> bool:
    return pod.view.terminated is not None or pod.view.phase in ("Succeeded", "Failed")


def _of_interest(pod: PodRecord, job: JobRecord) -> bool:
    """Whether status names the pod, or does not know its number yet."""
    if pod.view.owner_uid != job.uid:
        return False
    following = job.status.next_member if job.status is not None else 0
    return pod.key[1] in job.members or names.member_number(pod.key[1]) >= following


def _bound(memory: dict[str, PodRecord], most: int) -> None:
    """Drop the oldest entries beyond `most`."""
    while len(memory) > most:
        del memory[next(iter(memory))]
