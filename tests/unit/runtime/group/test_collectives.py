"""All ranks fail with the same error: the gravest that any of them has met."""

from __future__ import annotations

import pytest

from perdure.errors import Fenced, PerdureError, StorageError, StorageRefused, UserError
from perdure.group.collectives import on_all, on_rank0
from perdure.group.peers import Peers
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

        return on_all(peers, work)

    assert [type(found) for found in on_ranks(2, act)] == [raised] * 2


def test_rank_0s_refusal_is_everybodys() -> None:
    def act(peers: Peers) -> object:
        def refuse() -> None:
            raise StorageRefused("create the bucket")

        return on_rank0(peers, refuse)

    found = on_ranks(3, act)
    assert {type(each) for each in found} == {StorageRefused}
    assert all("create the bucket" in str(each) for each in found)


def test_ranks_that_do_different_things_together_are_told_so() -> None:
    def act(peers: Peers) -> object:
        return peers.gather(7) if peers.rank == 1 else on_all(peers, lambda: (None, None))

    found = on_ranks(3, act)
    assert isinstance(found[1], list)
    for alone in (found[0], found[2]):
        assert isinstance(alone, UserError)
        assert "come apart: rank 1 is in another call" in str(alone)
