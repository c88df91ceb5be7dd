"""How a pod ended: its outcome, or what Kubernetes knows of its end if it left none.

Questions only. A container writes the termination message itself: any bytes may be in it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Final

from perdure.wire import ContractError, ErrorName, ExitKind, HandoverRecord, HandoverWord, Outcome, read_outcome
from perdure.wire.truncation import shortened
from perdure_operator.api.status import Assigned, Failures, MemberOutcome
from perdure_operator.decide.draft import Draft, later
from perdure_operator.decide.facts import node_lost, terminated
from perdure_operator.state.snapshot import PodView, Terminated

NOTICED_AFTER_SECONDS: Final = 60
"""How long a node may have been dead before its Ready condition shows it: node-monitor-grace-period is 40 or 50 s."""

_OF_THE_ATTEMPT: Final = frozenset({"", "HandoverFailed", "HandoverRefused", "UserError"})
"""Names of errors with which a joining Session ends through no fault of its node; "" stands for no name."""

_NAME_LENGTH: Final = 100
"""The agent keeps to it; an image without the agent may leave anything."""
_TAIL_LENGTH: Final = 2000
_WHY_LENGTH: Final = 300
_CHATTER: Final = re.compile(r"(\[rank\d+\]:\s*)?(\[[WI]\d{4} [^\]]*\.(cpp|h|hpp|cc|cu):\d+\]|\[Gloo\] Rank )")
"""Notes and warnings of torch's native code, in the form of glog: `[W1121 12:00:00.123 socket.cpp:200] [c10d] ...`."""

_SIGNALLED: Final = (128 + 9, 128 + 15)
"""Exit codes of a container that was ended from outside: SIGKILL, SIGTERM."""

HEALING_COMMITS: Final = 10
"""After this many new entries of the log training is well past a failure of the code."""
HEALING_SECONDS: Final = 86400
"""After this long one new commit suffices: some jobs save once a day."""


def read_end(draft: Draft, member: Assigned, pod: PodView | None) -> MemberOutcome | None:
    """How this member of a run ended; None while it runs. A pod on a node that was given up has ended."""
    if pod is None or pod.uid != member.uid:
        return _silent(member.name, member.uid, "the pod is gone", _darkness(draft, member.node))
    if terminated(pod):
        end = end_of(pod)
        return end if end.time else end.model_copy(update={"time": _darkness(draft, pod.node)})
    if node_lost(draft, pod):
        return _silent(pod.name, pod.uid, f"node {pod.node} is unreachable", _darkness(draft, pod.node))
    return None


def end_of(pod: PodView) -> MemberOutcome:
    """The outcome that status keeps of a pod that has ended."""
    outcome = outcome_in(pod)
    # A kubelet that refuses a pod that has run tells of no container any more, and that the pod is not Ready.
    died = pod.terminated.finished_at if pod.terminated else pod.unready_since
    if pod.init_failed and pod.terminated:
        return _before_the_trainer(pod, pod.terminated)
    if outcome is None:
        return _silent(pod.name, pod.uid, _last_words(pod), died)
    error, commit, gone, attempt = outcome.error, outcome.commit, _gone_over(outcome), outcome.attempt
    in_attempt = attempt.run if attempt and attempt.word is HandoverWord.GO else None
    return MemberOutcome(
        name=pod.name,
        uid=pod.uid,
        outcome=outcome.outcome,
        run=outcome.run,
        step=outcome.step,
        epoch=outcome.epoch,
        commit_seq=commit.seq if commit else None,
        commit_step=commit.step if commit else None,
        error_kind=error.kind if error else "",
        error_name=_error_name(pod, _printable(error.name)[:_NAME_LENGTH] if error else outside_cause(pod)),
        error_tail=_own_words(_printable(error.tail)) if error else "",
        time=died,
        unsaved=outcome.unsaved.failures if outcome.unsaved else 0,
        unsaved_why=_printable(outcome.unsaved.why)[:_WHY_LENGTH] if outcome.unsaved else "",
        pause=gone.parts.get("pause") if gone else None,
        taken_over_by=gone.run if gone else in_attempt,
        aborted_run=never_takes_over(outcome),
        infrastructure=outcome.infrastructure or (outcome.outcome is ExitKind.FAILED and _killed(pod)),
    )


def outcome_in(pod: PodView) -> Outcome | None:
    """The outcome in a pod's termination message, None if it left none that can be read."""
    if pod.terminated is None or pod.init_failed:
        return None
    try:
        return read_outcome(pod.terminated.message)
    except ContractError:
        return None


def _gone_over(outcome: Outcome) -> HandoverRecord | None:
    """The hand-over by which it left its run, or came to it: earlier ones say nothing about the run it ended in."""
    gone = [record for record in outcome.handovers if record.word is HandoverWord.GO]
    if not gone or (outcome.outcome is not ExitKind.HANDED_OVER and gone[-1].run != outcome.run):
        return None
    return gone[-1]


def never_takes_over(outcome: Outcome) -> int | None:
    """The attempt that certainly fails: its pod has read so in the log, or ended without a vote that was needed.

    An older agent reports no attempt; then the kind of a newcomer's end shows it.
    """
    attempt = outcome.attempt
    if attempt is None:
        restarts = any(one.run == outcome.run and one.word is HandoverWord.RESTART for one in outcome.handovers)
        return outcome.run if outcome.outcome is ExitKind.HANDOVER_FAILED and not restarts else None
    never = attempt.word is HandoverWord.ABORT or not (attempt.voted or attempt.word)
    return attempt.run if never else None


def failed_by_itself(one: MemberOutcome) -> bool:
    """Whether a newcomer's code or node caused its end, and not an attempt that failed.

    Perdure's own errors in a joining Session are about the attempt: another way to take over may avoid them.
    """
    if one.outcome == ExitKind.FAILED:
        return True
    return one.outcome == ExitKind.HANDOVER_FAILED and one.error_name not in _OF_THE_ATTEMPT


def highest_opened(known: int, pods: Mapping[str, PodView]) -> int:
    """The highest run number that any pod has seen in the log: the next run has to be above it."""
    return max([known, *(outcome.opened for pod in pods.values() if (outcome := outcome_in(pod)))])


def learn(draft: Draft, outcome: MemberOutcome) -> Draft:
    """Record the newest commit that an outcome reports: it ends series of failures, and proves that the root works."""
    status = draft.status
    if outcome.commit_seq is None or outcome.commit_seq <= status.commit_seq:
        return draft
    failures = _healed(status.failures, outcome.commit_seq, draft.now)
    epoch = status.epoch if outcome.epoch is None else outcome.epoch
    newest = {"commit_seq": outcome.commit_seq, "step": outcome.commit_step, "epoch": epoch}
    return draft.update(**newest, failures=failures, root_problem=None, log_looks=0)


def _healed(failures: Failures, commit_seq: int, now: datetime) -> Failures:
    """The failures that still count after this new commit."""
    past = commit_seq > failures.code_seq + HEALING_COMMITS
    calm = failures.code_time is not None and now >= later(failures.code_time, HEALING_SECONDS)
    in_a_row = 0 if past or calm else failures.code_in_a_row
    counts = {"consecutive": 0, "infrastructure_in_a_row": 0, "code_in_a_row": in_a_row}
    return failures.model_copy(update=counts | {"hung_nodes": failures.hung_nodes if in_a_row else ()})


def learn_result(draft: Draft, outcome: Outcome) -> Draft:
    """Record the script's result, unless a newer commit is known; an outcome without a result takes none back."""
    newest = outcome.commit.seq if outcome.commit else 0
    if outcome.result is None or newest < draft.status.commit_seq:
        return draft
    return draft.update(result=json.loads(_printable(json.dumps(outcome.result, ensure_ascii=False))))


def _before_the_trainer(pod: PodView, ended: Terminated) -> MemberOutcome:
    """The outcome of a failed init container, which is the user's code: its exit is a code failure, SIGKILL is not."""
    how = _how(pod, ended)
    words = f"init container {pod.init_failed} ended: {how}\n{_printable(ended.message)}"
    return MemberOutcome(
        name=pod.name,
        uid=pod.uid,
        outcome=ExitKind.FAILED,
        error_name=_error_name(pod, how),
        error_tail=_own_words(words),
        time=ended.finished_at,
        infrastructure=_killed(pod) or ended.exit_code in _SIGNALLED,
    )


def _silent(name: str, uid: str, why: str, died: datetime | None) -> MemberOutcome:
    return MemberOutcome(name=name, uid=uid, outcome="", error_name=why, infrastructure=True, time=died)


def _darkness(draft: Draft, node: str) -> datetime:
    """Since when no process may have lived on this node; now if nothing is known about it."""
    since = next((unready.since for unready in draft.status.unready if unready.node == node), None)
    return later(since, -NOTICED_AFTER_SECONDS) if since else draft.now


def _error_name(pod: PodView, reported: str) -> str:
    """The error's name: out of memory if the kubelet says so, as the killed process itself cannot report it."""
    return ErrorName.OUT_OF_MEMORY if _out_of_memory(pod) else reported


def _out_of_memory(pod: PodView) -> bool:
    return pod.terminated is not None and pod.terminated.reason == "OOMKilled"


def _last_words(pod: PodView) -> str:
    """Why a pod without an outcome has ended, as far as Kubernetes knows."""
    if _out_of_memory(pod):
        return ErrorName.OUT_OF_MEMORY
    if pod.terminated:
        return _how(pod, pod.terminated)
    return outside_cause(pod) or ("the pod is gone" if pod.gone else f"the pod is {pod.phase}, and nothing says why")


def _how(pod: PodView, ended: Terminated) -> str:
    """How a container has ended, and first why, where Kubernetes has ended the whole pod."""
    how = f"{ended.reason or 'Error'} (exit code {ended.exit_code})"
    return "; ".join(part for part in (outside_cause(pod), how) if part)


def outside_cause(pod: PodView) -> str:
    """Why Kubernetes has ended the pod, or its kubelet has refused it, in their words; "" if they did not."""
    if not pod.reason:
        return ""
    where, what = f" on node {pod.node}" if pod.node else "", f": {pod.message}" if pod.message else ""
    return shortened(f"{pod.reason}{where}{what}", _WHY_LENGTH)


def _killed(pod: PodView) -> bool:
    return bool(pod.reason) or _out_of_memory(pod)


def _own_words(text: str) -> str:
    """The text without the notes that torch writes to stderr in every run.

    A killed process leaves nothing else, and they would look like the cause.
    """
    said = [line for line in text.strip().splitlines() if not _CHATTER.match(line)]
    return shortened("\n".join(said), _TAIL_LENGTH)


def _printable(text: str) -> str:
    """The text without lone surrogates, which JSON can carry and UTF-8 cannot."""
    return text.encode(errors="replace").decode()
