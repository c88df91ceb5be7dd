"""The pod template: tried before members are made from it, and at once when it is edited; the last good one is kept.

An edit that the API server refuses must not wait for the next drain to take the job down: its author is told now, and
members are made from the template that passed last until it is corrected. Which of the kept ones that is says
`status.templateChecked`, which is written before it is stored.
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
"""A refusal may also come from a namespace label, which an administrator can change."""

_PREAMBLE: Final = re.compile(r"^.*?\bis (?:invalid|forbidden): ", re.DOTALL)
_POD_PATH: Final = re.compile(r"(?<![\w.\"/])(spec|metadata)(?=[.\[:])")


def check_template(draft: Draft) -> Draft:
    """Only a refusal that blames the template makes the job wait for a correction, where no earlier one is kept."""
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
    answered = check.time is not None and check.verdict is not TemplateVerdict.UNKNOWN
    again = later(check.time or now, RECHECK_INVALID_SECONDS if bad else RECHECK_SECONDS) if answered else now
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
    kept = fallback(draft)
    until = "new members are made from the last one that was accepted" if kept else "no further member could be created"
    words = f"{_field_first(why)}; {until}: correct spec.template"
    if (draft.current or kept) and (old is None or old.status == "True"):
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


def keep_template(draft: Draft) -> Draft:
    """Store the template that has passed, then let go of earlier ones: what a crash left out is made up for here.

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
        return draft  # the job does without, and the operator's log says so
    return draft.act("the last template that was accepted", KeepTemplate(name=name))
