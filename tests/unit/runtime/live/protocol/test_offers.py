"""Which offers an old rank takes."""

from __future__ import annotations

import pytest

from perdure.live.protocol.offers import ReadOffer, read_offer
from perdure.wire import Handover, Leave, Train

RUN = 4
"""The one that trains here."""


def block(run: int) -> Handover:
    """Of an attempt to take over that run."""
    return Handover(run, 2, (1,), (1,), "10.0.0.1:29600", 30, "token")


def offer(run: int, of: int) -> Train:
    """To become rank 0 of `run`, which takes over run `of`."""
    return Train(run, 0, 2, "10.0.0.1:29500", handover=block(of))


@pytest.mark.parametrize(
    "given",
    [
        None,
        Leave(5, "a node leaves", 60),
        Train(5, 0, 2, "10.0.0.1:29500"),
        offer(RUN, RUN),
        offer(3, RUN),
    ],
    ids=["none", "to leave", "no hand-over", "of the run itself", "of an earlier run"],
)
def test_what_is_no_offer_of_a_newer_run_means_nothing(given: Train | Leave | None) -> None:
    assert read_offer(given, run=RUN, tried=0, attempted=0) is None


def test_an_offer_for_the_run_that_trains_begins_an_attempt_once() -> None:
    found = ReadOffer(block(RUN), begins=True, later=False)
    assert read_offer(offer(5, RUN), run=RUN, tried=0, attempted=0) == found
    assert read_offer(offer(5, RUN), run=RUN, tried=5, attempted=5) is None
    assert read_offer(offer(6, RUN), run=RUN, tried=5, attempted=5) == found


def test_an_offer_for_the_run_of_the_attempt_that_is_on_waits_for_it() -> None:
    assert read_offer(offer(6, 5), run=RUN, tried=5, attempted=5) == ReadOffer(block(5), begins=False, later=True)
    assert read_offer(offer(6, 5), run=5, tried=5, attempted=0) == ReadOffer(block(5), begins=True, later=False)


def test_an_offer_for_another_run_is_heard_and_begins_nothing() -> None:
    assert read_offer(offer(9, 8), run=RUN, tried=5, attempted=5) == ReadOffer(block(8), begins=False, later=False)
