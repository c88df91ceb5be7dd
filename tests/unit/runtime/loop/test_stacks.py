"""The text of stacks, and what a thread's innermost call says of it."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest

from perdure.loop.stacks import FRAMES_SHOWN, STACK_BYTES, THREADS_SHOWN, SeenCalls, stacks, standing
from perdure.wire.report import Standing

ALLREDUCE = "/venv/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py"
BACKWARD = "/venv/lib/python3.12/site-packages/torch/autograd/graph.py"
SCRIPT = "/app/train.py"


def frame_in(file: str, name: str = "inner", depth: int = 0) -> FrameType:
    """The frame of a function of this file, `depth` calls of itself further in."""
    source = (
        f"import sys\ndef {name}(n):\n    return {name}(n - 1) if n else sys._getframe()\nframe = {name}({depth})\n"
    )
    found: dict[str, FrameType] = {}
    exec(compile(source, file, "exec"), found)  # noqa: S102
    return found["frame"]


@pytest.mark.parametrize(
    ("file", "waits", "runs", "expected"),
    [
        (ALLREDUCE, "", False, Standing.WAITS_FOR_RANKS),
        (ALLREDUCE, "", True, Standing.WAITS_FOR_RANKS),
        (BACKWARD, "", False, Standing.WAITS_FOR_RANKS),
        (BACKWARD, "", True, Standing.RUNS),
        (SCRIPT, "", False, Standing.STANDS),
        (SCRIPT, "", True, Standing.RUNS),
        (SCRIPT, "waits in step() of step 4", False, Standing.WAITS_FOR_RANKS),
    ],
)
def test_a_thread_waits_for_ranks_where_its_innermost_call_or_its_session_does(
    file: str, waits: str, runs: bool, expected: Standing
) -> None:
    assert standing(frame_in(file), waits, runs=runs, alone=False) is expected
    alone = Standing.RUNS if runs else Standing.STANDS
    assert standing(frame_in(file), waits, runs=runs, alone=True) is alone


def test_a_thread_that_is_seen_in_one_collective_after_another_waits_for_none() -> None:
    first, again = frame_in(ALLREDUCE), frame_in(ALLREDUCE)
    same, other, script = SeenCalls(first), SeenCalls(first), SeenCalls(frame_in(SCRIPT))
    same.look(first)
    other.look(again)
    script.look(None)
    assert (same.moves, other.moves, script.moves) == (False, True, True)
    assert standing(again, "", runs=False, alone=False, moves=True) is Standing.STANDS
    assert standing(again, "waits in step() of step 4", runs=False, alone=False, moves=True) is Standing.WAITS_FOR_RANKS


WAIT = """import sys
def once(look):
    look(sys._getframe())
def wait(look):
    for _ in range(2):
        once(look)
"""


def test_a_collective_that_looks_again_and_again_is_one_call() -> None:
    found, seen = dict[str, Any](), list[SeenCalls]()
    exec(compile(WAIT, ALLREDUCE, "exec"), found)  # noqa: S102
    found["wait"](lambda frame: seen[0].look(frame) if seen else seen.append(SeenCalls(frame)))
    assert not seen[0].moves
    found["wait"](seen[0].look)
    assert seen[0].moves


def test_of_a_thread_that_has_ended_nothing_is_known() -> None:
    assert standing(None, "", runs=False, alone=False) is None


def test_the_sessions_thread_comes_first_with_its_innermost_call() -> None:
    frames = {7: frame_in("/app/other.py", "other"), 3: frame_in(SCRIPT, "stuck")}
    first, second = stacks(frames, {3: "MainThread"}, 3)
    assert first.splitlines() == [
        "thread MainThread, innermost call first:",
        f"  {SCRIPT}:3 in stuck",
        f"  {SCRIPT}:4 in <module>",
        *first.splitlines()[3:],
    ]
    assert "other" in second
    assert "does not know" in second


def test_deep_stacks_long_names_and_many_threads_have_bounds() -> None:
    deep = frame_in("/app/" + "ü" * 300 + ".py", "call", FRAMES_SHOWN + 5)
    texts = list(stacks(dict.fromkeys(range(THREADS_SHOWN + 4), deep), {0: "name " * 100}, 0))
    assert len(texts) == THREADS_SHOWN + 1
    assert "and 4 more threads" in texts[-1]
    for text in texts[:-1]:
        assert len(text.encode()) <= STACK_BYTES
        assert text.endswith("\n  ...\n")


def test_frames_of_this_interpreter_are_read() -> None:
    (text, *_) = stacks({1: sys._getframe()}, {1: "pytest"}, 1)
    assert test_frames_of_this_interpreter_are_read.__name__ in text.splitlines()[1]
