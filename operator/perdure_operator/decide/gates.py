"""What has to be true before members may be created. Each gate names what is awaited; members that exist stay."""

from __future__ import annotations

from typing import Final

from perdure_operator.api.reasons import Reason
from perdure_operator.decide.blame import backoff_until
from perdure_operator.decide.draft import Draft, clock, later
from perdure_operator.decide.facts import listed, node_lost, terminated
from perdure_operator.decide.startup_problems import refusal_reason
from perdure_operator.state.decision import CheckTemplate, DeletePod
from perdure_operator.state.snapshot import TemplateCheck, TemplateVerdict

RECHECK_SECONDS: Final = 10
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
    limit = draft.snapshot.spec.failure.lost_node_seconds
    message = (
        f"waiting for pods of an earlier job of this name to end: {listed(alive)}; "
        f"no time limit, but a pod on an unreachable node is given up after {limit} s"
    )
    return draft.block(Reason.WAITING_FOR_PREDECESSOR, message)


def keep_root_to_one_job(draft: Draft) -> Draft:
    """Two live jobs would fence each other: the younger one waits."""
    others = draft.snapshot.same_uri
    if draft.blocked or not others:
        return draft
    uri = draft.snapshot.spec.checkpoint.uri
    message = f"waiting until {', '.join(others[:3])} is finished or deleted: it has the same checkpoint.uri {uri}"
    # The other's end is its own event, not this job's, and none at all where the cache has learned of it otherwise.
    return draft.block(Reason.SHARED_ROOT, message, later(draft.now, RECHECK_SECONDS))


def check_template(draft: Draft) -> Draft:
    """A template is tried once, in a dry run; only a refusal that blames it makes the job wait for a correction."""
    wanted = draft.snapshot.template_hash
    if draft.blocked or draft.status.template_checked == wanted:
        return draft
    check = draft.snapshot.template_check
    if check.hash == wanted and check.verdict is TemplateVerdict.GOOD:
        return draft.update(template_checked=wanted)
    return _await_template(draft, check if check.hash == wanted else TemplateCheck())


def _await_template(draft: Draft, check: TemplateCheck) -> Draft:
    bad = check.verdict is TemplateVerdict.BAD
    again = later(check.time, RECHECK_INVALID_SECONDS if bad else RECHECK_SECONDS) if check.time else draft.now
    if again <= draft.now and not (bad and check.time is None):
        draft, again = (
            draft.act("the template has not been tried yet", CheckTemplate()),
            later(draft.now, RECHECK_SECONDS),
        )
    if bad:
        return draft.block(Reason.TEMPLATE_INVALID, f"correct spec.template: {check.message}", again)
    if check.verdict is TemplateVerdict.WAIT:
        message = f"refused in a dry run, which is repeated every {RECHECK_SECONDS} s: {check.message}"
        return draft.block(refusal_reason(check.message), message, again)
    return draft.block(Reason.CHECKING_TEMPLATE, "waiting for the dry run of the pod template", again)


def back_off(draft: Draft) -> Draft:
    """After a failure the next members are created a little later."""
    until = backoff_until(draft.status.failures)
    if until is None or draft.now >= until:
        return draft
    failures = draft.status.failures
    counted = f"{failures.code} of code, {failures.infrastructure} of infrastructure"
    message = f"the next members are created at {clock(until)}; failures so far: {counted}"
    return draft.block(Reason.BACKOFF, message, until)
