"""What has to be true before members may be created. Each gate names what is awaited; members that exist stay."""

from __future__ import annotations

from typing import Final

from perdure_operator.api.reasons import Reason
from perdure_operator.decide.blame import backoff_until
from perdure_operator.decide.facts import dead, listed, over
from perdure_operator.decide.troubles import refusal_reason
from perdure_operator.decide.turn import Turn, clock, later
from perdure_operator.state.plan import CheckTemplate, DeletePod
from perdure_operator.state.snapshot import TemplateCheck, TemplateVerdict

RECHECK_SECONDS: Final = 10
RECHECK_INVALID_SECONDS: Final = 60
"""A refusal may also come from a namespace label, which an administrator can change."""


def wait_for_predecessor(turn: Turn) -> Turn:
    """Pods of an earlier job of this name must not train any more; ownerless ones, left by an orphaning delete, go."""
    if turn.status.plan is not None or turn.snapshot.deleting:
        return turn
    foreign = [pod for pod in turn.snapshot.pods if pod.owner_uid != turn.snapshot.uid and not pod.gone]
    orphans = [pod for pod in foreign if not pod.owner_uid and not pod.deleting]
    turn = turn.act(*(DeletePod(name=pod.name, uid=pod.uid) for pod in orphans))
    alive = [pod for pod in foreign if not over(pod) and not dead(turn, pod)]
    if not alive:
        return turn
    limit = turn.snapshot.spec.failure.lost_node_seconds
    message = (
        f"waiting for pods of an earlier job of this name to end: {listed(alive)}; "
        f"no time limit, but a pod on an unreachable node is given up after {limit} s"
    )
    return turn.wait(Reason.WAITING_FOR_PREDECESSOR, message)


def keep_root_to_one_job(turn: Turn) -> Turn:
    """Two live jobs would fence each other: the younger one waits."""
    others = turn.snapshot.same_uri
    if turn.status.plan is not None or turn.waiting or not others:
        return turn
    uri = turn.snapshot.spec.checkpoint.uri
    message = f"waiting until {', '.join(others[:3])} is finished or deleted: it has the same checkpoint.uri {uri}"
    # The other's end is its own event, not this job's, and none at all where the cache has learned of it otherwise.
    return turn.wait(Reason.SHARED_ROOT, message, later(turn.now, RECHECK_SECONDS))


def check_template(turn: Turn) -> Turn:
    """A template is tried once, in a dry run; only a refusal that blames it makes the job wait for a correction."""
    wanted = turn.snapshot.template_hash
    if turn.status.plan is not None or turn.waiting or turn.status.template_checked == wanted:
        return turn
    check = turn.snapshot.template_check
    if check.hash == wanted and check.verdict is TemplateVerdict.GOOD:
        return turn.update(template_checked=wanted)
    return _await_template(turn, check if check.hash == wanted else TemplateCheck())


def _await_template(turn: Turn, check: TemplateCheck) -> Turn:
    bad = check.verdict is TemplateVerdict.BAD
    again = later(check.time, RECHECK_INVALID_SECONDS if bad else RECHECK_SECONDS) if check.time else turn.now
    if again <= turn.now and not (bad and check.time is None):
        turn, again = turn.act(CheckTemplate()), later(turn.now, RECHECK_SECONDS)
    if bad:
        return turn.wait(Reason.TEMPLATE_INVALID, f"correct spec.template: {check.message}", again)
    if check.verdict is TemplateVerdict.WAIT:
        message = f"refused in a dry run, which is repeated every {RECHECK_SECONDS} s: {check.message}"
        return turn.wait(refusal_reason(check.message), message, again)
    return turn.wait(Reason.CHECKING_TEMPLATE, "waiting for the dry run of the pod template", again)


def back_off(turn: Turn) -> Turn:
    """After a failure the next members are created a little later."""
    until = backoff_until(turn.status.failures)
    if turn.status.plan is not None or until is None or turn.now >= until:
        return turn
    failures = turn.status.failures
    counted = f"{failures.code} of code, {failures.infrastructure} of infrastructure"
    message = f"the next members are created at {clock(until)}; failures so far: {counted}"
    return turn.wait(Reason.BACKOFF, message, until)
