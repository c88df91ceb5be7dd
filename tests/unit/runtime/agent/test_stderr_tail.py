"""What of a process's stderr may tell why it has ended."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.agent.stderr_tail import TAIL_BYTES, Tail

NOISE = """\
[W1121 13:09:09.432116742 TCPStore.cpp:138] [c10d] recvValueWithTimeout failed on SocketImpl(fd=3): got 0 bytes
Exception raised from recvBytes at /pytorch/torch/csrc/distributed/c10d/Utils.hpp:786 (most recent call first):
frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x9d (0x7f059ed5c13d in libc10.so)
<omitting python frames>
frame #21: _start + 0x21 (0x5590bf507081 in python)
[E1121 13:09:11.404664664 socket.cpp:1028] [c10d] The client socket has timed out after 3000ms
[rank0]:[W1121 13:09:16.4 ProcessGroupNCCL.cpp:1250] Warning: destroy_process_group() was not called
W1121 13:09:09.432000 4711 torch/distributed/run.py:792] Setting OMP_NUM_THREADS
[Gloo] Rank 1 is connected to 3 peer ranks. Expected number of connected peer ranks is : 3
"""
REASONS = """\
Traceback (most recent call last):
  File "train.py", line 7, in <module>
ValueError: boom
[rank0]: ValueError: boom
[rank1]:[E1121 13:09:11.4 ProcessGroupNCCL.cpp:629] Watchdog caught collective operation timeout
[E1121 13:09:11.4 ProcessGroupNCCL.cpp:629] [Rank 0] Watchdog caught collective operation timeout
[WARN] my own words
frames are missing
"""


def tail_of(*pieces: str) -> str:
    tail = Tail()
    for piece in pieces:
        tail.add(piece.encode())
    return tail.text()


@pytest.mark.parametrize("line", NOISE.splitlines())
def test_what_libraries_write_on_the_way_to_any_end_is_left_out(line: str) -> None:
    assert tail_of(f"boom\n{line}\n") == "boom\n"
    assert tail_of(f"boom\n{line}") == "boom\n"


@pytest.mark.parametrize("line", REASONS.splitlines())
def test_what_may_be_a_reason_is_kept(line: str) -> None:
    assert tail_of(f"{line}\n") == f"{line}\n"


def test_much_noise_does_not_push_the_reason_out() -> None:
    assert tail_of(REASONS, *[NOISE] * 100) == REASONS


@given(st.lists(st.integers(0, len(NOISE + REASONS))))
def test_it_does_not_matter_where_the_pieces_end(cuts: list[int]) -> None:
    text = REASONS + NOISE + REASONS
    ends = [0, *sorted(cuts), len(text)]
    assert tail_of(*(text[a:b] for a, b in itertools.pairwise(ends))) == REASONS * 2


@pytest.mark.parametrize("piece", ["x" * 100, "x" * 99 + "\n"])
def test_no_more_is_kept_than_an_outcome_needs(piece: str) -> None:
    tail = Tail()
    for _ in range(1000):
        tail.add(piece.encode())
    assert len(tail.text()) == TAIL_BYTES
