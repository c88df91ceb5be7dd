"""What has to be true before members may be created. Each gate names what is awaited; members that exist stay."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final

from perdure_operator.api.reasons import ConditionType, Reason
from perdure_operator.decide.blame import backoff_until
from perdure_operator.decide.draft import Draft, clock, later
from perdure_operator.decide.facts import listed, node_lost, terminated
from perdure_operator.decide.startup_problems import refusal_reason
from perdure_operator.state.decision import CheckTemplate, DeletePod
from perdure_operator.state.snapshot import TemplateCheck, TemplateVerdict

RECHECK_SECONDS: Final = 10
LOOK_FOR_LOG_SECONDS: Final = 600
"""A restored bucket is noticed by itself, and an unattended job makes few pods in vain."""
_PREAMBLE: Final = re.compile(r"^.*?\bis (?:invalid|forbidden): ", re.DOTALL)
_POD_PATH: Final = re.compile(r"(?<![\w.\"/])(spec|metadata)(?=[.\[:])")

RECHECK_INVALID_SECONDS: Final = 60
"""A refusal may also come from a namespace label, which an administrator can change."""


def wait_for_predecessor(draft: Draft) -> Draft:
    """Pods of an earlier job of this name must not train any more; ownerless ones, left by an orphaning delete, go."""
    if draft.snapshot.deleting:
        return draft
    foreign = [pod for pod in draft.snapshot.pods if pod.owner_uid != draft.snapshot.uid and not pod.gone]
    orphans = [pod for pod in foreign if not pod.owner_uid and not pod.deleting]
    why = "it was left behind by an earlier job of this name"
    draft = draft.act(why, *(DeletePod(name=pod.name, uid=pod.uid) for pod in orphans))
    alive = [pod for pod in foreign if not terminated(pod) and not node_lost(draft, pod)]
    if not alive:
        return draft
    message = f"waiting for pods of an earlier job of this name to end: {listed(alive)}"
    return draft.block(Reason.WAITING_FOR_PREDECESSOR, message)


def keep_root_to_one_job(draft: Draft) -> Draft:
    """Two live jobs would fence each other: the younger one waits."""
    others = draft.snapshot.same_uri
    if draft.blocked or not others:
        return draft
    uri = draft.snapshot.spec.checkpoint.uri
    message = f"{', '.join(others[:3])}, older and live, has the same checkpoint.uri {uri}"
    # The other's end is its own event, not this job's, and none at all where the cache has learned of it otherwise.
    return draft.block(Reason.SHARED_ROOT, message, later(draft.now, RECHECK_SECONDS))


def check_template(draft: Draft) -> Draft:
    """Only a refusal that blames the template makes the job wait for a correction."""
    if draft.blocked:
        return draft
    draft, check, again = _tried(draft)
    if check.verdict is TemplateVerdict.GOOD:
        return draft
    if check.verdict is TemplateVerdict.BAD:
        message = f"{_field_first(check.message)}; the API server refuses members of this template"
        return draft.block(Reason.TEMPLATE_INVALID, message, again)
    if check.verdict is TemplateVerdict.WAIT:
        message = f"a member was refused in a dry run: {check.message}"
        return draft.block(refusal_reason(check.message), message, again)
    return draft.block(Reason.CHECKING_TEMPLATE, "waiting for the dry run of the pod template", again)


def try_template(draft: Draft) -> Draft:
    """While a run is on, an edit is tried at once: its author is told now, and not by the next drain."""
    return _tried(draft)[0]


def _tried(draft: Draft) -> tuple[Draft, TemplateCheck, datetime]:
    """What a dry run said of the template as it is now, and when the next one is due; each template is tried once."""
    wanted, now = draft.snapshot.template_hash, draft.now
    if draft.status.template_checked == wanted:
        return _accepted(draft), TemplateCheck(hash=wanted, verdict=TemplateVerdict.GOOD), now
    check = draft.snapshot.template_check if draft.snapshot.template_check.hash == wanted else TemplateCheck()
    if check.verdict is TemplateVerdict.GOOD:
        return _accepted(draft.update(template_checked=wanted)), check, now
    bad = check.verdict is TemplateVerdict.BAD
    if bad:
        draft = _rejected(draft, check.message)
    again = later(check.time, RECHECK_INVALID_SECONDS if bad else RECHECK_SECONDS) if check.time else now
    if again <= now and not (bad and check.time is None):
        draft = draft.act("nobody has tried this template lately", CheckTemplate())
        again = later(now, RECHECK_SECONDS)
    return draft.wake(again), check, again


def _accepted(draft: Draft) -> Draft:
    old = draft.status.find(ConditionType.TEMPLATE_ACCEPTED)
    if old is None or old.status == "True":
        return draft  # nothing was ever wrong with it, or that has been said
    words = "the API server would create pods of spec.template"
    return draft.condition(ConditionType.TEMPLATE_ACCEPTED, True, Reason.TEMPLATE_ACCEPTED, words)


def _rejected(draft: Draft, why: str) -> Draft:
    old = draft.status.find(ConditionType.TEMPLATE_ACCEPTED)
    words = f"{_field_first(why)}; no further member could be created: correct spec.template"
    if draft.current and (old is None or old.status == "True"):
        draft = draft.tell(Reason.TEMPLATE_INVALID, words, warning=True)
    return draft.condition(ConditionType.TEMPLATE_ACCEPTED, False, Reason.TEMPLATE_INVALID, words)


def _field_first(answer: str) -> str:
    """The API server's answer to the dry run of a pod as one about the job: its field first, by its path in the job."""
    return _POD_PATH.sub(r"spec.template.\1", _PREAMBLE.sub("", answer, count=1))


def warn_of_sidecars(draft: Draft) -> Draft:
    """Once, before the first member: a container beside container 0 outlives it, and keeps the pod's devices."""
    containers = (draft.snapshot.spec.template.get("spec") or {}).get("containers") or []
    if draft.blocked or draft.status.next_member or len(containers) < 2:
        return draft
    names = ", ".join(str(container.get("name")) for container in containers[1:])
    words = (
        f"containers beside container 0 ({names}) keep a member's pod running after its trainer has ended; "
        "the operator deletes such pods. Make them init containers with restartPolicy: Always"
    )
    return draft.tell(Reason.CLASSIC_SIDECAR, words, warning=True)


def keep_log(draft: Draft) -> Draft:
    """A job whose log lost commits never trains again in silence from an earlier step: somebody must say so."""
    lost, status = draft.status.log_lost, draft.status
    if lost is None:
        return draft
    if draft.snapshot.spec.checkpoint.resume_anyway:
        given_up = max((status.step or 0) - lost.found_step, 0)
        words = (
            f"checkpoint.resumeAnyway: going on from step {lost.found_step}; {given_up} committed steps are given up"
        )
        draft = draft.tell(Reason.LOG_LOST, words, warning=True)
        return draft.update(log_lost=None, commit_seq=0, step=None, steps_lost=status.steps_lost + given_up)
    again = later(lost.time, LOOK_FOR_LOG_SECONDS)
    if draft.now >= again or draft.snapshot.generation != lost.generation:
        return draft.update(log_lost=None)
    message = f"{lost.message}\nThe next members look for it at {clock(again)}"
    return draft.block(Reason.LOG_LOST, message, again)


def back_off(draft: Draft) -> Draft:
    """After a failure the next members are created a little later."""
    until = backoff_until(draft.status.failures)
    if until is None or draft.now >= until:
        return draft
    failures = draft.status.failures
    counted = f"{failures.code} of code, {failures.infrastructure} of infrastructure"
    message = f"the next members are created at {clock(until)}; failures so far: {counted}"
    return draft.block(Reason.BACKOFF, message, until)
