"""Bugs inside a member: in its agent, the machines of a hand-over, the log, and what only real processes do."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_UNIT: Final = "tests/unit/runtime/"
_NO_IMAGES: Final = "a simulated trainer has no memory, so that none leaves an image of it"
_NO_STATE: Final = "a simulated trainer has no state but its step"
_OF_AGENT: Final = tuple(f"{_UNIT}agent/test_{name}.py" for name in ("machine", "stage", "handover", "shell"))
_OF_HANDOVER: Final = tuple(
    f"{_UNIT}live/{name}.py" for name in ("protocol/test_machine", "protocol/test_timing", "test_model")
)
_OF_LOG: Final = tuple(f"{_UNIT}log/test_{name}.py" for name in ("writer", "takeover"))

INSIDE: Final = (
    Mutant(
        "the same save is requested again and again",
        "perdure.agent:_asked_for_save",
        "trainer = replace(trainer, saves=(current.run, current.save))",
        "trainer = replace(trainer, saves=(current.run, current.save - 1))",
        tests=(f"{_UNIT}agent/test_saves.py",),
    ),
    Mutant(
        "a requested save is made at each step",
        "perdure.loop:SaveRequests.look",
        "if number <= self._known:",
        "if number < self._known:",
        tests=("tests/unit/runtime/loop/test_saving.py",),
        outside=_NO_STATE,
    ),
    Mutant(
        "a trainer that votes is killed when its time to save is over",
        "perdure.agent:_limits",
        "elif stage is AgentStage.VOTING:",
        "elif stage is AgentStage.VOTING and state.shutdown:",
        ("party-frozen", "deciding-put", "storage-outage", "drain"),
        _OF_AGENT,
    ),
    Mutant(
        "a trainer that votes is killed though only one of its runs is lost",
        "perdure.agent:_lost",
        "return of <= set(newer.lost)",
        "return trainer.run in newer.lost",
        ("party-killed", "deciding-put", "operator-dies-in-a-handover"),
        _OF_AGENT,
    ),
    Mutant(
        "a request to the older run stays one to the run that has taken over",
        "perdure.agent:_took_over",
        "request = trainer.request if state.shutdown or state.newest > report.run else None",
        "request = trainer.request",
        ("partys-agent-hung", "party-frozen", "drain"),
        _OF_AGENT,
    ),
    Mutant(
        "a run that was to take over is begun in a pod that does not know the word",
        "perdure.agent:may_follow",
        "return word is HandoverWord.RESTART or (word is None and outcome.outcome is ExitKind.CHECKPOINTED)",
        "return word is not HandoverWord.ABORT",
        ("party-killed", "drain", "scale"),
        _OF_AGENT,
    ),
    Mutant(
        "trainers that were offered a hand-over are asked to save before its limit",
        "perdure.agent:asked_at",
        "return state.first_seen + limit + BACKSTOP_SECONDS",
        "return state.first_seen + BACKSTOP_SECONDS / 10 + 0 * limit",
        ("drain", "scale"),
        _OF_AGENT,
    ),
    Mutant(
        "a lost trainer that has no image to leave is waited for",
        "perdure.agent:_to_leave_image",
        "if _is_suspect(newer) or not stands or (not any((process.owes_image for process in trainer.alive))):",
        "if _is_suspect(newer) or not stands:",
        ("kill-pod", "hanging-rank"),
        _OF_AGENT,
    ),
    Mutant(
        "a member on a faulty node leaves an image",
        "perdure.agent:_to_leave_image",
        "if _is_suspect(newer) or not stands or (not any((process.owes_image for process in trainer.alive))):",
        "if not stands or not any((process.owes_image for process in trainer.alive)):",
        ("kill-pod", "hanging-rank"),
        _OF_AGENT,
    ),
    Mutant(
        "the image of a member on a faulty node is committed",
        "perdure.agent:_goes",
        "if not run or trainer.rescuing is not None or too_late or _is_suspect(_newer(state, trainer)):",
        "if not run or trainer.rescuing is not None or too_late:",
        ("kill-pod", "hanging-rank"),
        _OF_AGENT,
    ),
    Mutant(
        "a member that has lost a peer gives its seat up",
        "perdure.agent:HOLDS_SEAT",
        "frozenset({ExitKind.CHECKPOINTED, ExitKind.STOPPED, ExitKind.PEER_LOST})",
        "frozenset({ExitKind.CHECKPOINTED, ExitKind.STOPPED})",
        ("kill-pod",),
        _OF_AGENT,
    ),
    Mutant(
        "an image may take longer than the pod has",
        "perdure.agent:_limits",
        "at=min(at, state.shutdown.deadline) if state.shutdown else at)",
        "at=at)",
        tests=_OF_AGENT,
        outside=_NO_IMAGES,
    ),
    Mutant(
        "the decider opens the newer run although the vote has failed",
        "perdure.live.protocol:before_the_put",
        "case VoteReduced(whole=True):",
        "case VoteReduced():",
        ("party-killed", "party-cut-off"),
        _OF_HANDOVER,
    ),
    Mutant(
        "a store that does not answer the hand-over has refused it",
        "perdure.live.protocol:_answered",
        "return stay(state, AppendOpened(again=True))",
        "return say_and_return(state, HandoverWord.ABORT, 'the store did not answer')",
        ("deciding-put", "storage-faults", "drain"),
        _OF_HANDOVER,
    ),
    Mutant(
        "a party that has voted takes a closed link for an abort",
        "perdure.live.protocol:waited",
        "case LinkClosed():\n            return _ask(stay(state, settles=True, deaf=True)[0])",
        "case LinkClosed():\n            return answers.word(state, HandoverWord.ABORT, 'the link is closed')",
        ("party-killed", "deciding-put"),
        _OF_HANDOVER,
    ),
    Mutant(
        "an exit requested in the stop is forgotten when the run trains on",
        "perdure.live.protocol:in_the_round",
        "asks = (AskExit(),) if state.exits else ()",
        "asks = ()",
        ("party-deleted", "partys-agent-hung", "second-reason"),
        _OF_HANDOVER,
    ),
    Mutant(
        "a newcomer waits for old ranks that have saved and left",
        "perdure.log:verdict",
        "if entry.run == run and entry.ends_run:",
        "if entry.run > run and entry.ends_run:",
        ("second-reason", "partys-agent-hung", "drain"),
        _OF_LOG,
    ),
    Mutant(
        "a run whose hand-over was refused opens",
        "perdure.log:Writer._reason_to_wait",
        "if self.run <= own.refused:",
        "if self.run < own.refused:",
        ("party-killed", "party-cut-off", "second-reason"),
        _OF_LOG,
    ),
    Mutant(
        "a refusal fences the run that it leaves in its place",
        "perdure.log:Writer._refusal",
        "(entry.uid, entry.run) == (self._uid, self.run))",
        "(entry.uid, entry.writer) == (self._uid, self._id))",
        ("party-frozen", "deciding-put", "party-cut-off"),
        _OF_LOG,
    ),
    Mutant(
        "an image counts that lies beyond where another run has taken over",
        "perdure.log:admissible",
        "(at is None or stamp.step <= at)",
        "(at is None or stamp.step >= at)",
        tests=("tests/unit/runtime/log/test_images.py",),
        outside=_NO_IMAGES,
    ),
    Mutant(
        "a rank of a smaller run continues with another rank's own state",
        "perdure.checkpoint:Inheritance._staged",
        "same_world = found[holder]['stamp']['world'] == peers.world",
        "same_world = found[holder]['stamp']['world'] >= peers.world",
        tests=(f"{_UNIT}checkpoint/test_inherit.py",),
        outside=_NO_STATE,
    ),
    Mutant(
        "an image is left in the middle of a step",
        "perdure.loop:SurvivorSnapshots._stands",
        "return not self._touched and (self._seen is None or self._seen == self._glance())",
        "return self._seen is None or self._seen == self._glance()",
        tests=("tests/unit/runtime/loop/test_survivor_snapshots.py",),
        outside=_NO_IMAGES,
    ),
    Mutant(
        "the ranks stop for a hand-over although the store does not answer",
        "perdure.live:Driver._prepare",
        "self.feed(ev.StoreSeen(effects.store_answers()))",
        "self.feed(ev.StoreSeen(answers=True))",
        tests=("tests/unit/runtime/live/test_driving.py",),
        outside="the simulation drives the machines of a hand-over itself",
    ),
    Mutant(
        "a trainer that is no longer needed begins",
        "perdure.agent:_begin",
        "if not word:",
        "if word is None:",
        tests=(f"{_UNIT}agent/test_zygote.py",),
        outside="a simulated agent forks no process",
    ),
    Mutant(
        "a pruned parameter is reported by the next save only",
        "perdure.state:Registry.settle",
        "if strict and self._judged is not",
        "if not strict and self._judged is not",
        tests=("tests/unit/runtime/state/test_growing.py",),
        outside=_NO_STATE,
    ),
    Mutant(
        "a collate function draws by the seed of the batch's first sample",
        "perdure.loop.data:_Numbered.__getitems__",
        "[*(dataset[sample] for sample in samples[:-1]), self._seeded(samples[-1])]",
        "[self._seeded(samples[0]), *(dataset[sample] for sample in samples[1:])]",
        tests=("tests/unit/runtime/loop/data/test_loader.py",),
        outside=_NO_STATE,
    ),
)
