"""The newest known state of every object, indexed: from the watch, LISTs and answers to our own writes.

Fed by `loop.watch` (events), `observe` (LISTs) and `write.act` (answers), read by `observe`. A late state must not
replace a newer one: resourceVersions of one kind are compared as numbers. A live read also wins with a lower version if
the object has not changed here since the read began. Indexes answer every question, so that other jobs' pods cost
nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from perdure.wire import LABEL_JOB
from perdure_operator.api.signal_rows import SignalRow
from perdure_operator.cluster.protocol import BUDGETS, EVICTIONS, JOBS, NODES, PODS, REVISIONS, Json, Resource
from perdure_operator.cluster.read import parse, records
from perdure_operator.cluster.read.deleted_objects import DeletedObjects, DeletedPods
from perdure_operator.cluster.read.records import (
    AnyRecord,
    BudgetRecord,
    EvictionRecord,
    JobRecord,
    Key,
    NodeRecord,
    PodRecord,
    RevisionRecord,
    key_of,
    version_of,
)
from perdure_operator.cluster.read.roots import Root
from perdure_operator.state.signal_table import table
from perdure_operator.state.snapshot import NodeView, Zone

_G = TypeVar("_G")
_M = TypeVar("_M")


@dataclass(frozen=True, slots=True)
class Change:
    """A change of the cache: `before` or `after` is None if the object did not or does not exist."""

    resource: Resource
    before: AnyRecord | None
    after: AnyRecord | None

    @property
    def matters(self) -> bool:
        """Whether a decision can depend on it."""
        if self.before is None or self.after is None:
            return True
        return not self.before.same_facts(self.after)  # type: ignore[arg-type]  # one kind, one type


class Cache:
    """The cache. Not thread-safe: it belongs to the operator's event loop."""

    def __init__(self, signals: tuple[SignalRow, ...] = (), *, responds: bool = False) -> None:
        """`signals`: rows of the signal table that the configuration changes or adds.

        `responds`: whether the operator answers Evictions.
        """
        self.signals = signals
        self.responds = responds
        self.signal_table = table(signals)
        self._jobs: dict[Key, JobRecord] = {}
        self._pods: dict[Key, PodRecord] = {}
        self._nodes: dict[Key, NodeRecord] = {}
        self._budgets: dict[Key, BudgetRecord] = {}
        self._revisions: dict[Key, RevisionRecord] = {}
        self._evictions: dict[Key, EvictionRecord] = {}
        self._stores: Mapping[Resource, dict[Key, AnyRecord]] = {
            JOBS: self._jobs,  # type: ignore[dict-item]  # each holds its own kind only
            PODS: self._pods,  # type: ignore[dict-item]
            NODES: self._nodes,  # type: ignore[dict-item]
            BUDGETS: self._budgets,  # type: ignore[dict-item]
            REVISIONS: self._revisions,  # type: ignore[dict-item]
            EVICTIONS: self._evictions,  # type: ignore[dict-item]
        }
        self._pods_of: dict[Key, dict[Key, PodRecord]] = defaultdict(dict)
        self._pods_on: dict[str, dict[Key, Key]] = defaultdict(dict)
        self._jobs_in: dict[str, dict[Key, None]] = defaultdict(dict)
        self._jobs_at: dict[Root, dict[Key, None]] = defaultdict(dict)
        self._jobs_with_unready_nodes: dict[Key, None] = {}
        self._jobs_slowed_by: dict[str, dict[Key, None]] = defaultdict(dict)
        self._gangs: dict[Key, None] = {}
        self._budgets_over: dict[tuple[str, str], dict[Key, BudgetRecord]] = defaultdict(dict)
        self._budgets_named: dict[Key, dict[Key, BudgetRecord]] = defaultdict(dict)
        self._revisions_named: dict[Key, dict[Key, RevisionRecord]] = defaultdict(dict)
        self._evictions_of: dict[Key, dict[Key, EvictionRecord]] = defaultdict(dict)
        self._zones: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        self._names_of: dict[str, Key] = {}
        self._marks: dict[Resource, dict[Key, int]] = defaultdict(dict)
        self._deleted: Mapping[Resource, DeletedObjects] = defaultdict(DeletedObjects)
        self._gone = DeletedPods()
        self._mark = 0

    # reading

    def job(self, key: Key) -> JobRecord | None:
        """The job with that name."""
        return self._jobs.get(key)

    def jobs(self) -> list[JobRecord]:
        """Every job."""
        return list(self._jobs.values())

    def key_of_job(self, uid: str) -> Key | None:
        """The key of the job with that uid."""
        return self._names_of.get(uid)

    def jobs_in(self, namespace: str) -> list[Key]:
        """Jobs of a namespace."""
        return list(self._jobs_in.get(namespace, ()))

    def jobs_at(self, root: Root | None) -> list[JobRecord]:
        """Jobs that write to this root."""
        return [self._jobs[key] for key in self._jobs_at.get(root, ())] if root is not None else []

    def pods(self, job: Key) -> list[PodRecord]:
        """All pods with the job's label, even those that it does not own."""
        return list(self._pods_of[job].values()) if job in self._pods_of else []

    def pod(self, key: Key) -> PodRecord | None:
        """The pod with that name."""
        return self._pods.get(key)

    def gone(self, job: Key) -> list[PodRecord]:
        """Last states of the job's deleted pods, as far as they are still kept."""
        return list(self._gone.of(job))

    def node(self, name: str) -> NodeRecord | None:
        """The node with that name."""
        return self._nodes.get(("", name))

    def nodes(self) -> list[NodeRecord]:
        """Every node."""
        return list(self._nodes.values())

    def zones(self) -> tuple[Zone, ...]:
        """The numbers of Ready and other nodes in each zone."""
        return tuple(
            Zone(name=name, ready=ready, not_ready=not_ready)
            for name, (ready, not_ready) in sorted(self._zones.items())
            if ready or not_ready
        )

    def jobs_on(self, node: str) -> set[Key]:
        """Jobs that have a pod on the node."""
        return set(self._pods_on.get(node, {}).values())

    def jobs_with_unready_nodes(self) -> set[Key]:
        """Jobs whose status names unready nodes; decisions about those depend on all other nodes."""
        return set(self._jobs_with_unready_nodes)

    def namespaces_slowed_by(self, node: str) -> int:
        """In how many namespaces jobs are held up by members on the node."""
        return len({namespace for namespace, _ in self._jobs_slowed_by.get(node, ())})

    def gangs(self) -> list[JobRecord]:
        """Jobs whose start holds nodes in vain, or that pause after one."""
        return [self._jobs[key] for key in self._gangs]

    def budget(self, key: Key) -> BudgetRecord | None:
        """The budget with that name."""
        return self._budgets.get(key)

    def budgets(self) -> list[BudgetRecord]:
        """Every budget."""
        return list(self._budgets.values())

    def budgets_named(self, job: Key) -> list[BudgetRecord]:
        """Budgets with the label of that job, or of an earlier job of its name."""
        return list(self._budgets_named.get(job, {}).values())

    def revisions(self) -> list[RevisionRecord]:
        """Every kept template."""
        return list(self._revisions.values())

    def revisions_named(self, job: Key) -> list[RevisionRecord]:
        """Kept templates with the label of that job, or of an earlier job of its name."""
        return list(self._revisions_named.get(job, {}).values())

    def evictions_of(self, pod: PodRecord) -> list[EvictionRecord]:
        """The Evictions of exactly that pod that the operator answers."""
        named = self._evictions_of.get(pod.key, {}).values() if self._evictions_of else ()
        return [one for one in named if one.view is not None and one.view.pod == pod.uid]

    def job_of(self, pod: Key) -> Key | None:
        """The job whose label the pod with that name has."""
        found = self._pods.get(pod)
        return found.job if found is not None else None

    def budgets_over(self, namespace: str, uids: Iterable[str]) -> Iterator[BudgetRecord]:
        """Budgets that may cover pods with one of these job uids as a label."""
        for uid in {"", *uids}:
            yield from self._budgets_over.get((namespace, uid), {}).values()

    # writing

    def mark(self) -> int:
        """A counter value for `since`: a live read that begins after it is as new as everything known by now."""
        return self._mark

    def apply(self, resource: Resource, raw: Json, *, since: int | None = None) -> Change | None:
        """Store an existing object; returns None if a newer state is known.

        `since` is the mark before the live read that returned it.
        """
        key, uid, version = key_of(raw), parse.uid(raw), version_of(raw)
        known = self._stores[resource].get(key)
        if self._deleted[resource].hides(uid, version, since):
            return None
        if known is not None and not self._follows(resource, known, version, since):
            return None
        record = self._read(resource, raw, known)
        if known is not None and known.uid != uid:
            self._remove(resource, known)
            self._remember_deleted(resource, known)
        self._put(record, resource)
        return Change(resource, known, record)

    def delete(self, resource: Resource, raw: Json) -> Change | None:
        """Remove a deleted object; `raw` is its last state, with the version of its deletion.

        Returns None if it was not known, or if a newer state is known.
        """
        key, uid = key_of(raw), parse.uid(raw)
        known = self._stores[resource].get(key)
        if known is not None and known.uid == uid and version_of(raw) < known.version:
            return None
        if known is None or known.uid != uid:
            self._remember_deleted(resource, self._read(resource, raw))
            return None
        last = self._read(resource, raw, known)
        self._remove(resource, known)
        self._remember_deleted(resource, last)
        return Change(resource, known, None)

    def drop(self, resource: Resource, key: Key, *, since: int) -> Change | None:
        """Remove an object that a live read begun at `since` did not find; returns None if it changed meanwhile."""
        known = self._stores[resource].get(key)
        if known is None or self._marks[resource][key] > since:
            return None
        self._remove(resource, known)
        self._remember_deleted(resource, known)
        return Change(resource, known, None)

    def forget(self, resource: Resource, key: Key, uid: str) -> None:
        """Remove exactly that object, which we deleted ourselves."""
        known = self._stores[resource].get(key)
        if known is not None and known.uid == uid:
            self._remove(resource, known)
            self._remember_deleted(resource, known)

    def keys(self, resource: Resource) -> list[Key]:
        """Keys of all objects of a kind."""
        return list(self._stores[resource])

    def _read(self, resource: Resource, raw: Json, known: AnyRecord | None = None) -> AnyRecord:
        return records.read(resource, raw, known, self.signal_table)

    def _follows(self, resource: Resource, known: AnyRecord, version: int, since: int | None) -> bool:
        undisturbed = since is not None and self._marks[resource][known.key] <= since
        return version > known.version or (undisturbed and version < known.version)

    def _put(self, record: AnyRecord, resource: Resource) -> None:
        known = self._stores[resource].get(record.key)
        if known is not None:
            self._unindex(known)
        self._mark += 1
        self._stores[resource][record.key] = record
        self._marks[resource][record.key] = self._mark
        match record:
            case PodRecord(key=key, uid=uid, job=job):
                self._gone.remove(uid, job)
                if job is not None:
                    self._pods_of[job][key] = record
                    if record.view.node:
                        self._pods_on[record.view.node][key] = job
            case JobRecord(uid=uid):
                self._index_job(record)
                self._gone.job_is(record, new=known is None or known.uid != uid)
            case BudgetRecord(key=key):
                self._budgets_over[key[0], record.selects_uid][key] = record
                self._budgets_named[key[0], record.labels.get(LABEL_JOB, "")][key] = record
            case RevisionRecord(key=key, job=job):
                self._revisions_named[job][key] = record
            case EvictionRecord(key=key, pod=pod):
                self._evictions_of[pod][key] = record
            case NodeRecord(view=view):
                self._count(view, 1)

    def _index_job(self, record: JobRecord) -> None:
        key = record.key
        self._jobs_in[key[0]][key] = None
        self._names_of[record.uid] = key
        if record.root is not None:
            self._jobs_at[record.root][key] = None
        if record.status is not None and record.status.unready:
            self._jobs_with_unready_nodes[key] = None
        if record.waits_as_gang:
            self._gangs[key] = None
        for node in record.slow_nodes:
            self._jobs_slowed_by[node][key] = None

    def _remove(self, resource: Resource, record: AnyRecord) -> None:
        self._unindex(record)
        del self._stores[resource][record.key]
        del self._marks[resource][record.key]

    def _unindex(self, record: AnyRecord) -> None:
        key = record.key
        match record:
            case PodRecord(job=job) if job is not None:
                _forget(self._pods_of, job, key)
                _forget(self._pods_on, record.view.node, key)
            case JobRecord(uid=uid, root=root):
                _forget(self._jobs_in, key[0], key)
                self._names_of.pop(uid, None)
                self._jobs_with_unready_nodes.pop(key, None)
                self._gangs.pop(key, None)
                for node in record.slow_nodes:
                    _forget(self._jobs_slowed_by, node, key)
                if root is not None:
                    _forget(self._jobs_at, root, key)
            case BudgetRecord():
                _forget(self._budgets_over, (key[0], record.selects_uid), key)
                _forget(self._budgets_named, (key[0], record.labels.get(LABEL_JOB, "")), key)
            case RevisionRecord(job=job):
                _forget(self._revisions_named, job, key)
            case EvictionRecord(pod=pod):
                _forget(self._evictions_of, pod, key)
            case NodeRecord(view=view):
                self._count(view, -1)
            case _:
                pass

    def _count(self, node: NodeView, by: int) -> None:
        self._zones[node.zone][0 if node.ready else 1] += by

    def _remember_deleted(self, resource: Resource, record: AnyRecord) -> None:
        self._mark += 1
        self._deleted[resource].add(record.uid, record.version, self._mark, alive=len(self._stores[resource]))
        if isinstance(record, JobRecord):
            self._gone.job_is_gone(record)
        elif isinstance(record, PodRecord) and record.job is not None:
            of_deleted_job = record.view.owner_uid in self._deleted[JOBS]
            earlier = self._gone.get(record.uid, record.job)
            if not of_deleted_job and (earlier is None or earlier.version < record.version):
                self._gone.add(record, self._jobs.get(record.job))


def _forget(index: dict[_G, dict[Key, _M]], group: _G, key: Key) -> None:
    """Remove from the index. Empty groups go too, because names come and go forever."""
    members = index.get(group)
    if members is not None:
        members.pop(key, None)
        if not members:
            del index[group]
