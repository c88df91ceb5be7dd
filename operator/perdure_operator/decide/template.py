"""The pod template: tried before members are made from it, and at once when it is edited; the last good one is kept.

An edit that the API server refuses must not take the job down at the next drain: its author learns of it at once, and
until it is corrected members are made from the template that passed last. `status.templateChecked` names that one
among the kept templates; it is written before the template is stored.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final

from perdure_operator.api import names
from perdure_operator.api.reasons import ConditionType, Reason
from perdure_operator.decide.draft import Draft, later
from perdure_operator.decide.facts import fallback
from perdure_operator.decide.waiting import refusal_reason
from perdure_operator.state.decision import CheckTemplate, DropTemplate, KeepTemplate
from perdure_operator.state.snapshot import TemplateCheck, TemplateVerdict

RECHECK_SECONDS: Final = 10
RECHECK_INVALID_SECONDS: Final = 60
"""A refused template is tried again: the refusal may come from a namespace label, which an administrator can change."""

_PREAMBLE: Final = re.compile(r"^.*?\bis (?:invalid|forbidden): ", re.DOTALL)
_POD_PATH: Final = re.compile(r"(?<![\w.\"/])(spec|metadata)(?=[.\[:])")


def check_template(draft: Draft) -> Draft:
    """Create no members from a template that is refused, or not tried yet, unless an earlier good one is kept."""
    if draft.blocked:
        return draft
    draft, check, again = _tried(draft)
    if check.verdict is TemplateVerdict.GOOD:
        return draft
    if kept := fallback(draft):
        return draft.because(f"spec.template is refused: members are made from the last good one, in {kept.name}")
    if check.verdict is TemplateVerdict.BAD:
        message = f"{_field_first(check.message)}; the API server refuses members of this template"
        return draft.block(Reason.TEMPLATE_INVALID, message, again)
    if check.verdict is TemplateVerdict.WAIT:
        message = f"a member was refused in a dry run: {check.message}"
        return draft.block(refusal_reason(check.message), message, again)
    return draft.block(Reason.CHECKING_TEMPLATE, "waiting for the dry run of the pod template", again)


def try_template(draft: Draft) -> Draft:
    """Try an edit at once while a run is on: its author learns of a refusal now, and not at the next drain."""
    return _tried(draft)[0]


def _tried(draft: Draft) -> tuple[Draft, TemplateCheck, datetime]:
    """The result of the current template's dry run, and when the next one is due; each good template is tried once."""
    wanted, now = draft.snapshot.template_hash, draft.now
    if draft.status.template_checked == wanted:
        return _accepted(draft), TemplateCheck(hash=wanted, verdict=TemplateVerdict.GOOD), now
    check = draft.snapshot.template_check if draft.snapshot.template_check.hash == wanted else TemplateCheck()
    if check.verdict is TemplateVerdict.GOOD:
        return _accepted(draft.update(template_checked=wanted)), check, now
    bad = check.verdict is TemplateVerdict.BAD
    if bad:
        draft = _rejected(draft, check.message)
    answered = check.time is not None and check.verdict is not TemplateVerdict.UNKNOWN
    again = later(check.time or now, RECHECK_INVALID_SECONDS if bad else RECHECK_SECONDS) if answered else now
    if again <= now and not (bad and check.time is None):
        draft = draft.act("this template was not tried lately", CheckTemplate())
        again = later(now, RECHECK_SECONDS)
    return draft.wake(again), check, again


def _accepted(draft: Draft) -> Draft:
    old = draft.status.find(ConditionType.TEMPLATE_ACCEPTED)
    if old is None or old.status == "True":
        return draft  # it was never refused, or the condition is True already
    words = "the API server would create pods of spec.template"
    return draft.condition(ConditionType.TEMPLATE_ACCEPTED, True, Reason.TEMPLATE_ACCEPTED, words)


def _rejected(draft: Draft, why: str) -> Draft:
    old = draft.status.find(ConditionType.TEMPLATE_ACCEPTED)
    kept = fallback(draft)
    until = "new members are made from the last one that was accepted" if kept else "no further member could be created"
    words = f"{_field_first(why)}; {until}: correct spec.template"
    if (draft.current or kept) and (old is None or old.status == "True"):
        draft = draft.tell(Reason.TEMPLATE_INVALID, words, warning=True)
    return draft.condition(ConditionType.TEMPLATE_ACCEPTED, False, Reason.TEMPLATE_INVALID, words)


def _field_first(answer: str) -> str:
    """The API server's answer about a pod, as one about the job: the field comes first, by its path in the job."""
    return _POD_PATH.sub(r"spec.template.\1", _PREAMBLE.sub("", answer, count=1))


def warn_of_sidecars(draft: Draft) -> Draft:
    """Warn once, before the first member, of containers beside container 0: they outlive it and keep its devices."""
    containers = (draft.snapshot.spec.template.get("spec") or {}).get("containers") or []
    if draft.blocked or draft.status.next_member or len(containers) < 2:
        return draft
    names = ", ".join(str(container.get("name")) for container in containers[1:])
    words = (
        f"containers beside container 0 ({names}) keep a member's pod running after its trainer has ended; "
        "the operator deletes such pods. Make them init containers with restartPolicy: Always"
    )
    return draft.tell(Reason.CLASSIC_SIDECAR, words, warning=True)


def keep_template(draft: Draft) -> Draft:
    """Store the template that has passed, then drop earlier ones, also after a crash.

    A job that never had a run has none to lose, and its pods should not wait for one more write.
    """
    snapshot, checked = draft.snapshot, draft.status.template_checked
    if snapshot.deleting or not draft.status.run or not checked or checked != snapshot.template_hash:
        return draft
    name = names.kept_template(snapshot.name, snapshot.uid, checked)
    if any(one.name == name for one in snapshot.kept):
        earlier = [one for one in snapshot.kept if one.name != name]
        return draft.act("a newer one is kept", *(DropTemplate(name=one.name, uid=one.uid) for one in earlier))
    if any(refusal.pod == name for refusal in snapshot.refusals):
        return draft  # the job goes on without it, and the operator's log has the refusal
    return draft.act("the last template that was accepted", KeepTemplate(name=name))
