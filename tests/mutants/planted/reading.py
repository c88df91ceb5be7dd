"""Bugs in the watch, the cache and live reads, and in what others may have written into objects."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_NO_JSON: Final = "the simulated API server hands over objects, and nobody reads JSON"
_OF_JSON: Final = ("tests/unit/operator/cluster/test_decode.py", "tests/unit/operator/loop/test_guard.py")

READING: Final = (
    Mutant(
        "after a failed round the job is not read again",
        "perdure_operator.cluster.read:Live.distrust",
        "    self._current.pop(job, None)\n",
        "",
        ("api-lost-answers", "api-errors", "watch-drops"),
    ),
    Mutant(
        "a resync trusts a job whose round has failed meanwhile",
        "perdure_operator.cluster.read:Live.sync",
        "for job in self._cache.jobs() if job.key not in self._distrusted}",
        "for job in self._cache.jobs()}",
        ("api-errors", "operator-crash"),
    ),
    Mutant(
        "a job that was just written is not read again",
        "perdure_operator.loop:Worker._round",
        "        self._observer.distrust(job)\n",
        "",
        ("watch-delays", "drain"),
    ),
    Mutant(
        "a job that was created again is not read live at first sight",
        "perdure_operator.cluster.read:Live.knows_pods_of",
        "return self._current.get(record.key) == record.uid",
        "return record.key in self._current",
        ("delete-and-apply", "watch-delays"),
    ),
    Mutant(
        "a pod that names a newer run stops no trainer",
        "perdure_operator.cluster.read:Live._overtaken",
        "return newest > known and self._confirmed.get(record.key) != (record.version, newest)",
        "return False",
        ("operator-freeze", "one-stream-lags", "drain"),
    ),
    Mutant(
        "a node that the cache does not have counts as deleted",
        "perdure_operator.cluster.read:Observer._node",
        "raw = await self._api.get(NODES, None, name)",
        "raise NotFound(name)",
        ("nodes-join",),
    ),
    Mutant(
        "times in status are the operator's own clock's",
        "perdure_operator.cluster.read:Observer.__init__",
        "self._clock = clock or api.server_time",
        "self._clock = clock or (lambda: datetime.now().astimezone())",
        ("operator-clock", "operator-crash", "node-power"),
    ),
    Mutant(
        "nodes are watched by generation only",
        "perdure_operator.cluster.read:NodeRecord.same_facts",
        "return (self.uid, self.view) == (other.uid, other.view)",
        "return (self.view.cordoned, self.view.taints) == (other.view.cordoned, other.view.taints)",
        ("node-deleted-without-taint", "drain"),
    ),
    Mutant(
        "news of nodes concern no job",
        "perdure_operator.loop:affected_jobs",
        "return {job for record in known for job in cache.jobs_on(record.key[1])}",
        "return set()",
        ("drain",),
    ),
    Mutant(
        "a job that waits for a root does not learn that it is free",
        "perdure_operator.loop:affected_jobs",
        "return {record.key for record in known} | _sharing_root(cache, change)",
        "return {record.key for record in known}",
        ("stranger-with-my-root",),
    ),
    Mutant(
        "two deletions are remembered, and no more",
        "perdure_operator.cluster.read:DeletedObjects.add",
        "if len(self._young) >= self._most_alive + SPARE:",
        "if len(self._young) >= 1:",
        ("api-slow-for-one-kind", "api-conflicts", "ended-pods-are-deleted", "drain"),
    ),
    Mutant(
        "of a job's deleted members one is remembered",
        "perdure_operator.cluster.read:DeletedPods.add",
        "_bound(kept, len(job.members) + SPARE)",
        "_bound(kept, 1)",
        ("api-slow-for-one-kind", "ended-pods-are-deleted", "drain"),
    ),
    Mutant(
        "of deleted pods whose job is not known yet one is remembered",
        "perdure_operator.cluster.read:DeletedPods.add",
        "_bound(self._strangers, SPARE)",
        "_bound(self._strangers, 1)",
        ("one-stream-lags", "delete-and-apply"),
    ),
    Mutant(
        "a late event revives a deleted object",
        "perdure_operator.cluster.read:DeletedObjects.hides",
        "return deleted is not None and version <= deleted.version and",
        "return deleted is not None and version < 0 and",
        ("api-slow-for-one-kind", "ended-pods-are-deleted", "scale"),
    ),
    Mutant(
        "a label that was removed and put back is refused for ever",
        "perdure_operator.cluster.read:DeletedObjects.hides",
        "return deleted is not None and version <= deleted.version and (since is None or deleted.mark > since)",
        "return deleted is not None",
        ("remove-job-label",),
    ),
    Mutant(
        "a LIST drops objects that arrived since it began",
        "perdure_operator.cluster.read:Cache.drop",
        "if known is None or self._marks[resource][key] > since:",
        "if known is None:",
        ("api-slow-for-one-kind", "api-conflicts", "reaper"),
    ),
    Mutant(
        "a late event undoes a newer one",
        "perdure_operator.cluster.read:Cache._follows",
        "return version > known.version or (undisturbed and version < known.version)",
        "return version != known.version",
        ("api-slow-for-one-kind", "scale"),
    ),
    Mutant(
        "one unknown word in status makes a job unreadable",
        "perdure_operator.api:Phase._missing_",
        "return cls.PENDING",
        "return None",
        ("unknown-status",),
    ),
    Mutant(
        "a field of a newer operator makes status unreadable",
        "perdure_operator.api:TolerantModel.model_config",
        "model_config = ConfigDict(extra='ignore')",
        "model_config = ConfigDict(extra='forbid')",
        ("unknown-status",),
    ),
    Mutant(
        "one object nested too deep ends a LIST",
        "perdure_operator.cluster:document",
        "except RecursionError:",
        "except MemoryError:",
        tests=_OF_JSON,
        outside=_NO_JSON,
    ),
    Mutant(
        "a metadata of the wrong type reaches kopf",
        "perdure_operator.cluster:known_part",
        "ignored = [*_mend(raw), *_cut(raw)]",
        "ignored = _cut(raw)",
        tests=_OF_JSON,
        outside=_NO_JSON,
    ),
    Mutant(
        "the end of a native sidecar counts as that of an init container",
        "perdure_operator.cluster.read:Containers.init_failed",
        "ended = ((name, state.get('terminated') or {}) for name, _, state in self._init(sidecars=False))",
        "ended = ((name, state.get('terminated') or {}) for name, _, state in self._init(sidecars=True))",
        ("before-the-trainer",),
    ),
    Mutant(
        "native sidecars that do not start are not seen",
        "perdure_operator.cluster.read:Containers.stuck",
        "in self._init(sidecars=True):",
        "in self._init(sidecars=False):",
        ("before-the-trainer",),
    ),
    Mutant(
        "a node that is gone is read in each round",
        "perdure_operator.cluster.read:Observer._node",
        "self._absent[name] = self._absent.get(name, set()) | pods",
        "self._absent[name] = set()",
        ("pool-vanishes",),
    ),
)
