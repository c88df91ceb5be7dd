"""All ranks fail with the same error: the gravest that any of them has met."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

import perdure
from perdure.errors import Fenced, PerdureError, StorageError, StorageRefused, UserError
from perdure.group.collectives import on_all, on_rank0
from perdure.group.peers import Peers, RanksApart
from tests.unit.runtime.checkpoint.world import on_ranks


@pytest.mark.parametrize(
    ("met", "raised"),
    [
        ((None, StorageError), StorageError),
        ((StorageError, StorageRefused), StorageRefused),
        ((StorageRefused, None), StorageRefused),
        ((StorageRefused, UserError), UserError),
        ((StorageRefused, Fenced), Fenced),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_what_no_patience_mends_goes_before_what_it_does(
    met: tuple[type[PerdureError] | None, ...], raised: type[PerdureError]
) -> None:
    def act(peers: Peers) -> object:
        error = met[peers.rank]

        def work() -> tuple[None, None]:
            if error:
                raise error("this is why")
            return None, None

        return on_all(peers, "works", work)

    assert [type(found) for found in on_ranks(2, act)] == [raised] * 2


def test_rank_0s_refusal_is_everybodys() -> None:
    def act(peers: Peers) -> object:
        def refuse() -> None:
            raise StorageRefused("create the bucket")

        return on_rank0(peers, "asks", refuse)

    found = on_ranks(3, act)
    assert {type(each) for each in found} == {StorageRefused}
    assert all("create the bucket" in str(each) for each in found)


def test_ranks_that_do_different_things_together_raise() -> None:
    def act(peers: Peers) -> object:
        return peers.gather("ends", 7) if peers.rank == 1 else on_all(peers, "works", lambda: (None, None))

    for found in on_ranks(3, act):
        assert isinstance(found, UserError)
        assert "come apart: rank 0 works, rank 1 ends" in str(found)


def test_ranks_that_part_within_a_call_do_not_wait_for_those_that_have_left_it() -> None:
    def act(peers: Peers) -> object:
        def inner() -> tuple[None, None]:
            peers.gather("ends" if peers.rank else "works", None)
            return None, None

        return on_all(peers, "does both", inner) if peers.rank else peers.gather("works", None)

    assert [type(found) for found in on_ranks(2, act)] == [RanksApart] * 2


def test_no_two_calls_say_that_they_do_the_same() -> None:
    call = re.compile(r'(?:peers\.(?:gather|broadcast)\(|on_(?:all|rank0)\(\s*[\w.]+,)\s*f?"([^"]+)"')
    files = Path(perdure.__file__).parent.rglob("*.py")
    said = Counter(words for file in files for words in call.findall(file.read_text()))
    assert len(said) > 30
    assert [words for words, times in said.items() if times > 1] == []
