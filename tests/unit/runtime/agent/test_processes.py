"""Pipes from the processes that the agent starts."""

from __future__ import annotations

import os
import selectors

from perdure.agent.processes import Pipe


def test_a_pipe_whose_writer_is_gone_wakes_no_reader() -> None:
    reader, writer = os.pipe()
    with selectors.DefaultSelector() as selector:
        pipe = Pipe(reader, selector)
        os.write(writer, b"last words")
        os.close(writer)
        assert [pipe.read(), pipe.read(), pipe.read()] == [b"last words", b"", b""]
        assert not selector.get_map()
