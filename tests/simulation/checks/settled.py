"""I6: once faults have stopped, every job trains or is finished, and a finished job holds nothing."""

from __future__ import annotations

from tests.simulation.checks.case import Case
from tests.simulation.checks.reading import FINISHED, condition, finished, plan_of, plans, rests, status_of, wanted
from tests.simulation.checks.runs import Runs
from tests.simulation.objects import Json, key_of, terminal, uid_of


def unsettled(case: Case, runs: Runs) -> list[str]:
    """The jobs that neither train nor are finished, each with its status; in a pool those not finished."""
    return [words for user in case.scene.users if (words := _unsettled(case, runs, user.job))]


def unfinished(case: Case) -> list[str]:
    """The jobs that were asked to stop and continue, or have pods that do."""
    found = []
    for user in case.scene.users:
        job = user.job
        left = [key_of(one)[1] for one in case.pods(uid_of(job)) if not terminal(one)] if job else []
        if job is not None and (left or not finished(job)):
            found.append(f"{user.key[1]} is {status_of(job).get('phase')}, and has {left or 'no pods'}")
    return found


def _unsettled(case: Case, runs: Runs, job: Json | None) -> str:
    if job is None:
        return ""
    status, name = status_of(job), key_of(job)[1]
    left = [one for one in case.pods(uid_of(job)) if not terminal(one)]
    if status.get("phase") in FINISHED:
        return f"{name} is finished, and {len(left)} of its pods hold their devices" if left else ""
    if (case.fired("emptied-root", "stripped-root") or _has_moved(case, job)) and _asks_about_root(status):
        return ""
    if case.scene.pool:
        return f"{name} is {status.get('phase')}, and not finished: {_said(status)}"
    last = runs.training[name]
    plan = max((int(one["run"]) for one in plans(status)), default=0)
    steps = last.uid == uid_of(job) and last.run == plan and case.now - last.at < 30.0
    if status.get("phase") == "Running" and steps and _has_its_size(case, job):
        return ""
    return f"{name} is {status.get('phase')} in run {plan}, last step in run {last.run}: {_said(status)}"


def _said(status: Json) -> str:
    said = [f"{one['type']}={one['status']} {one['reason']}: {one['message']}" for one in status.get("conditions", ())]
    return "; ".join(said[:3])


def _has_its_size(case: Case, job: Json) -> bool:
    """There is room for all now; after failed attempts a larger run is tried later."""
    return len(plan_of(status_of(job))["members"]) == wanted(job["spec"]) or rests(job, case.now)


def _has_moved(case: Case, job: Json) -> bool:
    """Whether its owner made it train at another's root for a while: its known commits are there, and missing in its
    own."""
    readers, uid = case.evidence.readers, uid_of(job)
    others = (reader for root, reader in readers.items() if root != job["spec"]["checkpoint"]["uri"])
    return case.fired("root-edited") and any(line.run[0] == uid for reader in others for line in reader.lines)


def _asks_about_root(status: Json) -> bool:
    """Only users can restore what was deleted below a root, or remove it whole: an append in flight is left."""
    return condition(status, "Running").get("reason") in ("LogLost", "CheckpointsDamaged")
