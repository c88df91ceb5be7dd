"""Bugs in preconditions, order and answers of writes, in rounds and their back-off, and in the Lease."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

WRITING: Final = (
    Mutant(
        "status is written without the job's uid",
        "perdure_operator.cluster.write:Actor._write_status",
        "'namespace': namespace, 'uid': uid, 'resourceVersion': version}",
        "'namespace': namespace, 'resourceVersion': version}",
        ("delete-and-apply", "operator-freeze"),
    ),
    Mutant(
        "status is written whatever has changed meanwhile",
        "perdure_operator.cluster.write:Actor._write_status",
        "'namespace': namespace, 'uid': uid, 'resourceVersion': version}",
        "'namespace': namespace, 'uid': uid}",
        ("late-status",),
    ),
    Mutant(
        "a round without a status change has no precondition on the job",
        "perdure_operator.cluster.write:Actor.act",
        "elif any((not isinstance(action, CheckTemplate) for action in decision.actions)):",
        "elif job.deleting and (not decision.actions):",
        ("remove-job-label", "remove-role-label", "edit-budget"),
    ),
    Mutant(
        "a round based on an older state of the job continues",
        "perdure_operator.cluster.write:Actor._require_unchanged",
        "if (parse.uid(raw), str(version_of(raw))) != (job.uid, job.resource_version):",
        "if parse.uid(raw) != job.uid:",
        ("one-stream-lags", "suspend-and-resume", "quota"),
    ),
    Mutant(
        "a pod is deleted though it has changed since",
        "perdure_operator.cluster.write:Writes._delete_pod",
        "version = seen.resource_version if seen else ''",
        "version = ''",
        ("api-late-writes", "scale"),
    ),
    Mutant(
        "a pod gets another assignment than was decided",
        "perdure_operator.cluster.write:_assign_patch",
        "tests += [_test(path, value) for path, value in ((annotation, action.old), (label, role)) if value]",
        "tests += []",
        ("late-assignment",),
    ),
    Mutant(
        "a budget is set though it was changed since",
        "perdure_operator.cluster.write:_budget_patch",
        "if action.resource_version:",
        "if not action.uid:",
        ("late-budget",),
    ),
    Mutant(
        "a stranger's object of the name counts as created",
        "perdure_operator.cluster.write:Writes._create",
        "if parse.controller(raw) != job.uid:",
        "if not parse.uid(raw):",
        ("foreign-budget", "kill-pod"),
    ),
    Mutant(
        "writes of a batch are still under way when the round ends",
        "perdure_operator.cluster.write:Actor._answers",
        "await asyncio.gather(*writes, return_exceptions=True)",
        "await asyncio.gather(*writes)",
        ("api-slow-for-one-kind", "api-errors", "scale"),
    ),
    Mutant(
        "a replica that lost its lease keeps writing",
        "perdure_operator.cluster:Election.still_leading",
        "return self.leading and self._monotonic() - self._renewed < _FENCE * self._settings.period",
        "return self.leading",
        ("operator-freeze", "operator-cut-off", "drain"),
    ),
    Mutant(
        "a renewal counts from its answer",
        "perdure_operator.cluster:Election._perform_step",
        "self._renewed = sent",
        "self._renewed = self._monotonic()",
        ("frozen-renewal",),
    ),
    Mutant(
        "a Lease is taken before it has ended",
        "perdure_operator.cluster:Seen.free_at",
        "return self.since + self.seconds if self.holder else self.since",
        "return self.since + self.seconds / 4 if self.holder else self.since",
        ("api-slow", "operator-freeze", "drain"),
    ),
    Mutant(
        "news cancel a round's back-off",
        "perdure_operator.loop:Schedule._allowed",
        "return at if back_off is None else max(at, min(back_off.soonest, back_off.until))",
        "return at",
        ("api-overload", "spec-fight"),
    ),
    Mutant(
        "news that come during a round are lost",
        "perdure_operator.loop:Schedule.add",
        "if at < self._due.get(key, float('inf')):",
        "if key not in self._busy and at < self._due.get(key, float('inf')):",
        ("api-slow-for-one-kind", "drain"),
    ),
    Mutant(
        "two rounds of one job run at once",
        "perdure_operator.loop:Schedule.pop",
        "    self._busy.add(key)\n",
        "",
        ("api-slow", "watch-delays", "drain"),
    ),
    Mutant(
        "a round that has written is taken for the last one",
        "perdure_operator.loop:Worker._after",
        "    if rounds:\n        self._queue.add(job)\n        return\n",
        "",
        ("drain", "scale"),
    ),
    Mutant(
        "orphaned members are gone on with as if they were lost",
        "perdure_operator.decide:decide",
        "if snapshot.deleting and orphaned(snapshot):",
        "if snapshot.deleting and (not snapshot.uid):",
        ("orphan-and-apply",),
    ),
    Mutant(
        "a budget that has outlived its job stays",
        "perdure_operator.loop:is_orphan",
        "(not one.owner)",
        "bool(one.owner)",
        ("orphan-and-apply", "drain"),
    ),
)
