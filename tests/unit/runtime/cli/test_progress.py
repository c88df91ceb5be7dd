"""The bar of long commands, on a terminal and elsewhere; and JSON of every command."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from io import TextIOWrapper
from pathlib import Path

import pytest
import torch
from torch import nn

from perdure import Session
from perdure.cli.main import _parser, main

COLOUR = re.compile(r"\x1b\[[\d;]*3\d[\d;]*m")
Argv = Callable[[Path, Path], list[str]]

LONG: dict[str, Argv] = {
    "verify": lambda root, _: [str(root)],
    "copy": lambda root, to: [str(root), str(to / "copy")],
    "export": lambda root, to: [str(root), "model", str(to / "out")],
    "import": lambda _, to: [str(to / "file.pt"), str(to / "imported"), "model"],
    "gc": lambda root, _: ["--keep", "1", str(root)],
    "diff": lambda root, _: [str(root), str(root)],
}
"""What each long command is given."""
SHORT: dict[str, Argv] = {
    "log": lambda root, _: [str(root)],
    "show": lambda root, _: [str(root)],
    "pin": lambda root, _: [str(root)],
    "unpin": lambda root, _: [str(root)],
    "store-check": lambda _, to: [str(to / "checked")],
    "describe": lambda _, to: ["--", sys.executable, str(to / "train.py")],
}
EVERY: dict[str, Argv] = LONG | SHORT
OF_A_POD = {"run", "warm", "stop"}
"""The kubelet reads their status alone."""
FOR_KUBECTL = {"convert"}
"""It prints a manifest."""

SCRIPT = """
import torch
from torch import nn
from perdure import Session

with Session.from_env("{root}") as session:
    model = session.wrap(nn.Linear(2, 2))
    session.register(model=model)
    for _ in session.epochs(1):
        for _batch in session.loader(torch.utils.data.TensorDataset(torch.ones(2, 2)), batch_size=1):
            session.step()
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with two commits."""
    root = tmp_path_factory.mktemp("trained") / "root"
    for epochs in (1, 2):
        with Session.from_env(root) as session:
            model = session.wrap(nn.Linear(2, 2))
            session.register(model=model)
            for _ in session.epochs(epochs):
                for _batch in session.loader(torch.utils.data.TensorDataset(torch.ones(2, 2)), batch_size=1):
                    session.step()
    return root


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with what `import` and `describe` are given."""
    torch.save(nn.Linear(2, 2).state_dict(), tmp_path / "file.pt")
    (tmp_path / "train.py").write_text(SCRIPT.format(root=tmp_path / "described"))
    return tmp_path


class Terminal:
    """A pseudo-terminal in place of a stream, and all that was written to it."""

    def __init__(self) -> None:
        self._main, side = os.openpty()
        self.stream: TextIOWrapper = os.fdopen(side, "w")
        self._read = bytearray()
        self._reader = threading.Thread(target=self._drain)
        self._reader.start()

    def _drain(self) -> None:
        while True:
            try:
                data = os.read(self._main, 65536)
            except OSError:  # Linux's word for the end
                return
            if not data:
                return
            self._read += data

    def close(self) -> str:
        """Ends it, and returns what was written."""
        if not self.stream.closed:
            self.stream.close()
            self._reader.join(60)
            os.close(self._main)
        return self._read.decode()


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    opened = Terminal()
    yield opened
    opened.close()


def run(terminal: Terminal, *argv: str, both: bool = False) -> str:
    """What a command that succeeds writes to a terminal: as its stderr, or as `both` of its streams."""
    with pytest.MonkeyPatch.context() as patch:  # not in a fixture: pytest sets the streams anew before each call
        patch.setattr(sys, "stderr", terminal.stream)
        if both:
            patch.setattr(sys, "stdout", terminal.stream)
        assert main(argv) == 0
    return terminal.close()


@pytest.mark.parametrize("command", LONG)
def test_a_long_command_draws_on_a_terminal_and_cleans_up(
    command: str, trained: Path, place: Path, terminal: Terminal, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn = run(terminal, command, *LONG[command](trained, place))
    assert command in drawn
    assert "━" in drawn
    assert COLOUR.search(drawn)
    assert drawn.endswith("\x1b[2K"), "the bar is still there"
    told = capsys.readouterr().out
    assert told
    assert "\x1b" not in told


def test_the_bar_counts_commits_and_bytes(trained: Path, place: Path, terminal: Terminal) -> None:
    drawn = run(terminal, "copy", str(trained), str(place / "copy"))
    assert "2/2" in drawn
    assert re.search(r"[1-9][\d.]* k?B, [\d.]+ [kM]?B/s", drawn)


def test_lines_and_the_bar_share_a_terminal(trained: Path, terminal: Terminal) -> None:
    drawn = run(terminal, "verify", str(trained), both=True)
    assert "━" in drawn
    lines = re.findall(r"\x1b\[2Kcommit \d+ of step \d+: whole, \d+ bytes\r\n", drawn)
    assert len(lines) == 2, "each begins where the bar was erased"


def test_there_is_no_colour_with_no_color(trained: Path, terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    drawn = run(terminal, "verify", str(trained))
    assert "verify" in drawn
    assert not COLOUR.search(drawn)


@pytest.mark.parametrize("command", LONG)
def test_with_json_a_terminal_stays_empty(command: str, trained: Path, place: Path, terminal: Terminal) -> None:
    assert run(terminal, command, "--json", *LONG[command](trained, place)) == ""


def test_a_dumb_terminal_stays_empty(trained: Path, terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert run(terminal, "verify", str(trained)) == ""


@pytest.mark.parametrize("command", LONG)
def test_a_pipe_gets_nothing_though_colours_are_forced(
    command: str, trained: Path, place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert main([command, *LONG[command](trained, place)]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("command", EVERY)
def test_every_command_prints_json(command: str, trained: Path, place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--json", *EVERY[command](trained, place)]) == 0
    lines = capfd.readouterr().out.splitlines()
    found = [json.loads("\n".join(lines))] if command == "describe" else [json.loads(line) for line in lines]
    assert found
    assert all(isinstance(one, dict) for one in found)


def test_no_command_is_left_out() -> None:
    (commands,) = (action for action in _parser()._actions if isinstance(action, argparse._SubParsersAction))
    assert set(commands.choices) == EVERY.keys() | OF_A_POD | FOR_KUBECTL
