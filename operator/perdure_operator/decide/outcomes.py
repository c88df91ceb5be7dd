"""What a pod that has ended tells: its outcome, or what Kubernetes knows of its end where it left none.

Questions only. A container writes the termination message itself: any bytes may be in it.
"""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import Final

from perdure.wire import ContractError, ErrorName, ExitKind, HandoverRecord, HandoverWord, Outcome, read_outcome
from perdure.wire.truncation import shortened
from perdure_operator.api.status import Assigned, Failures, MemberOutcome
from perdure_operator.decide.draft import Draft, later
from perdure_operator.decide.facts import node_lost, terminated
from perdure_operator.state.snapshot import PodView, Terminated

NOTICED_AFTER_SECONDS: Final = 60
"""A node may have been dead for so long before its Ready condition says so: node-monitor-grace-period is 40 or 50 s."""

_OF_THE_ATTEMPT: Final = frozenset({"", "HandoverFailed", "HandoverRefused", "UserError"})
"""Names of errors with which a Session that joins ends for no fault of its node's; "" where it has told none."""

_NAME_LENGTH: Final = 100
"""As the agent writes it; an image without our agent may leave anything."""
_TAIL_LENGTH: Final = 2000
_WHY_LENGTH: Final = 300
_CHATTER: Final = re.compile(r"(\[rank\d+\]:\s*)?(\[[WI]\d{4} [^\]]*\.(cpp|h|hpp|cc|cu):\d+\]|\[Gloo\] Rank )")
"""Notes and warnings of torch's native code, in the form of glog: `[W1121 12:00:00.123 socket.cpp:200] [c10d] ...`."""

_SIGNALLED: Final = (128 + 9, 128 + 15)
"""Exit codes of a container that was ended from outside: SIGKILL, SIGTERM."""

HEALING_COMMITS: Final = 10
"""So many new entries of the log after a failure of the code, and training is well past it."""
HEALING_SECONDS: Final = 86400
"""So long after it one new commit tells as much: some jobs save once a day."""


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
    """What status keeps of a pod that has ended."""
    outcome = outcome_in(pod)
    died = pod.terminated.finished_at if pod.terminated else None
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
        error_name=_error_name(pod, _printable(error.name)[:_NAME_LENGTH] if error else ""),
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
    """The outcome in a pod's termination message, None where it left none that can be read."""
    if pod.terminated is None or pod.init_failed:
        return None
    try:
        return read_outcome(pod.terminated.message)
    except ContractError:
        return None


def _gone_over(outcome: Outcome) -> HandoverRecord | None:
    """The hand-over by which it left its run, or came to it: earlier ones tell nothing of the run it ended in."""
    gone = [record for record in outcome.handovers if record.word is HandoverWord.GO]
    if not gone or (outcome.outcome is not ExitKind.HANDED_OVER and gone[-1].run != outcome.run):
        return None
    return gone[-1]


def never_takes_over(outcome: Outcome) -> int | None:
    """The attempt that never takes place, as its pod knows: it has read so, or its vote was needed and not given.

    An agent of before tells of no attempt, and a newcomer's end by its kind.
    """
    attempt = outcome.attempt
    if attempt is None:
        restarts = any(one.run == outcome.run and one.word is HandoverWord.RESTART for one in outcome.handovers)
        return outcome.run if outcome.outcome is ExitKind.HANDOVER_FAILED and not restarts else None
    never = attempt.word is HandoverWord.ABORT or not (attempt.voted or attempt.word)
    return attempt.run if never else None


def failed_by_itself(one: MemberOutcome) -> bool:
    """Whether a newcomer has ended of what it is or where it is, and not of an attempt that did not come about.

    Of a Session that joins errors of our own tell of the attempt: another way of taking over may do without it.
    """
    if one.outcome == ExitKind.FAILED:
        return True
    return one.outcome == ExitKind.HANDOVER_FAILED and one.error_name not in _OF_THE_ATTEMPT


def highest_opened(known: int, pods: dict[str, PodView]) -> int:
    """The highest run number that any pod has seen in the log: the next run has to be above it."""
    return max([known, *(outcome.opened for pod in pods.values() if (outcome := outcome_in(pod)))])


def learn(draft: Draft, outcome: MemberOutcome) -> Draft:
    """What an outcome tells about the log: the newest commit, which also ends rows of failures and proves the root."""
    status = draft.status
    if outcome.commit_seq is None or outcome.commit_seq <= status.commit_seq:
        return draft
    failures = _healed(status.failures, outcome.commit_seq, draft.now)
    epoch = status.epoch if outcome.epoch is None else outcome.epoch
    newest = {"commit_seq": outcome.commit_seq, "step": outcome.commit_step, "epoch": epoch}
    return draft.update(**newest, failures=failures, root_problem=None, log_looks=0)


def _healed(failures: Failures, commit_seq: int, now: datetime) -> Failures:
    """What still counts once training has come to this new commit."""
    past = commit_seq > failures.code_seq + HEALING_COMMITS
    calm = failures.code_time is not None and now >= later(failures.code_time, HEALING_SECONDS)
    in_a_row = 0 if past or calm else failures.code_in_a_row
    return failures.model_copy(update={"consecutive": 0, "infrastructure_in_a_row": 0, "code_in_a_row": in_a_row})


def learn_result(draft: Draft, outcome: Outcome) -> Draft:
    """The script's result, unless somebody has told of a newer commit; who has none takes nothing back."""
    newest = outcome.commit.seq if outcome.commit else 0
    if outcome.result is None or newest < draft.status.commit_seq:
        return draft
    return draft.update(result=json.loads(_printable(json.dumps(outcome.result, ensure_ascii=False))))


def _before_the_trainer(pod: PodView, ended: Terminated) -> MemberOutcome:
    """An init container is the user's code, as the script is: its exit is a failure of the code, SIGKILL is not."""
    how = f"{ended.reason or 'Error'} (exit code {ended.exit_code})"
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
    """Since when nobody may have lived on this node, or now where nothing is known of it."""
    since = next((unready.since for unready in draft.status.unready if unready.node == node), None)
    return later(since, -NOTICED_AFTER_SECONDS) if since else draft.now


def _error_name(pod: PodView, told: str) -> str:
    """The kubelet knows of a container killed for its memory what the process itself cannot tell."""
    return ErrorName.OUT_OF_MEMORY if _out_of_memory(pod) else told


def _out_of_memory(pod: PodView) -> bool:
    return pod.terminated is not None and pod.terminated.reason == "OOMKilled"


def _last_words(pod: PodView) -> str:
    """Why a pod without an outcome has ended, as far as Kubernetes knows."""
    if _out_of_memory(pod):
        return ErrorName.OUT_OF_MEMORY
    if pod.terminated:
        return f"{pod.terminated.reason or 'Error'} (exit code {pod.terminated.exit_code})"
    return "the pod was evicted" if pod.evicted else "the pod is gone"


def _killed(pod: PodView) -> bool:
    return pod.evicted or _out_of_memory(pod)


def _own_words(text: str) -> str:
    """Without the notes that torch leaves on stderr in every run: whoever was killed says nothing else, and they would
    pass for the cause."""
    said = [line for line in text.strip().splitlines() if not _CHATTER.match(line)]
    return shortened("\n".join(said), _TAIL_LENGTH)


def _printable(text: str) -> str:
    """Without the lone surrogates that JSON can carry and UTF-8 cannot."""
    return text.encode(errors="replace").decode()
