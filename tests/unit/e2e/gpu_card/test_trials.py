"""The card's code does on CPUs what it is to do on a GPU, and its page shows what has failed."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.gpu_card import trials
from e2e.gpu_card.__main__ import main, page
from e2e.gpu_card.trials import Card, Row, tried


@pytest.fixture
def card(tmp_path: Path) -> Card:
    return Card("cpu", tmp_path, mib=4, moves=1, steps=120, pace=0.05)


@pytest.mark.chaos
def test_a_save_is_weighed_and_members_change_live(card: Card) -> None:
    save, live = tried(card, lambda _: None, ["a save", "live, 2 to 2"])
    assert save.found.startswith("4 MiB: the slowest step takes ")
    assert live.found.startswith("live, and training stood still for "), live.found


def test_a_trial_that_fails_is_on_the_page_with_its_words(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(_: Card) -> str:
        raise RuntimeError("no\nNCCL | here")

    monkeypatch.setitem(trials.TRIALS, "breaks", breaks)
    text = "\n".join(page("cpu", tried(card, lambda _: None, ["breaks"])))
    assert "| breaks | FAILED: RuntimeError: no NCCL / here |" in text
    assert "Not tried: " in text


def test_a_page_names_each_command() -> None:
    assert "* a save: `python x`" in list(page("cpu", [Row("a save", "nothing", "python x")]))


def test_a_machine_without_a_gpu_gets_no_page(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["gpu_card"])
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert main() == 1
    assert "--device cpu tries the same code" in capsys.readouterr().err
