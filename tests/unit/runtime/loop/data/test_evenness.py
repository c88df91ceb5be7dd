"""Unequal shares of a global batch are reported once, with numbers of ranks that would have equal ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.loop.data.evenness import SHOWN, near, why_another, why_uneven
from perdure.loop.data.loader import Loader
from perdure.loop.data.sampling import SamplingPlan, Shares
from tests.unit.runtime.loop.data.test_loader import Epochs, Squares

BATCH = 8
UNEVEN = "of 8 samples of a global batch"


def _loader(world: int, *, rank: int = 0, size: int = 21, sized_for: int | None = None) -> tuple[Loader, Epochs]:
    epochs, plan = Epochs(), SamplingPlan("train", size, batch=BATCH, seed=3)
    return Loader(Squares(size), plan, epochs, rank=rank, world=world, options={}, sized_for=sized_for), epochs


def _train(loader: Loader) -> None:
    for _ in loader:
        loader.advance()
    loader.rewind()


def _told(epochs: Epochs) -> list[str]:
    return [words for words in epochs.told if words.startswith("loader 'train':")]


@pytest.mark.parametrize(
    ("batch", "world", "have", "even"),
    [
        (100, 3, "1 of 3 ranks has 34, the others 33", "1, 2, 4, 5 or 10 ranks have equal shares"),
        (64, 6, "4 of 6 ranks have 11, the others 10", "1, 2, 4, 8, 16 or 32 ranks have equal shares"),
        (2, 3, "2 of 3 ranks have 1, the others 0", "1 or 2 ranks have equal shares"),
        (1, 2, "1 of 2 ranks has 1, the others 0", "1 rank has all of it"),
        (7, 3, "1 of 3 ranks has 3, the others 2", "1 or 7 ranks have equal shares"),
    ],
)
def test_the_words_name_the_shares_and_the_numbers_of_ranks_without_a_rest(
    batch: int, world: int, have: str, even: str
) -> None:
    words = why_uneven("loader 'train'", batch, world)
    assert have in words
    assert even in words
    assert f"elastic.globalBatchSize {batch} gives" in words


@given(st.integers(1, 300), st.integers(1, 40))
def test_they_are_those_that_the_sampling_gives(batch: int, world: int) -> None:
    plan = SamplingPlan("train", batch, batch)
    order = plan.order(0)
    shares = [len(next(iter(Shares(plan, order, 0, rank, world))).ids) for rank in range(world)]
    words = why_uneven("loader 'train'", batch, world)
    assert bool(words) == (len(set(shares)) > 1)
    if words:
        assert f"{shares.count(max(shares))} of {world} ranks" in words
        assert f"{max(shares)}, the others {min(shares)}" in words


@given(st.integers(1, 5000), st.integers(1, 200))
def test_numbers_of_ranks_are_the_nearest_that_divide(batch: int, world: int) -> None:
    divisors = [number for number in range(1, batch + 1) if batch % number == 0]
    below, above = [one for one in divisors if one < world], [one for one in divisors if one > world]
    assert list(near(batch, world)) == [*below[-SHOWN:], *above[:SHOWN]]


def test_a_loader_says_once_what_its_ranks_have_however_many_epochs_they_train() -> None:
    loader, epochs = _loader(3)
    for _ in range(3):
        _train(loader)
    assert [UNEVEN in words for words in _told(epochs)] == [True]


def test_nothing_is_reported_where_ranks_have_equal_shares() -> None:
    loader, epochs = _loader(4)
    _train(loader)
    assert _told(epochs) == []


def test_after_each_change_of_size_it_is_said_again_where_it_is_true() -> None:
    loader, epochs = _loader(2)
    for world, said in ((2, 0), (3, 1), (3, 1), (4, 1), (3, 2)):
        loader.share(0, world)
        _train(loader)
        assert len(_told(epochs)) == said


def test_what_is_only_evaluated_may_be_shared_in_any_way() -> None:
    loader, epochs = _loader(3, sized_for=6)
    for _ in loader:
        pass
    loader.forget()  # as before the next batch of one that is trained
    loader.advance()  # that one's step
    assert _told(epochs) == []


def test_an_epoch_smaller_than_a_batch_is_shared_as_it_is() -> None:
    loader, epochs = _loader(3, size=6)
    _train(loader)
    assert _told(epochs) == []


class TestABatchThatTheJobsSizesAreNotFor:
    def test_is_reported_once_with_what_to_write_where(self) -> None:
        loader, epochs = _loader(2, sized_for=6)
        for _ in range(2):
            _train(loader)
        loader.share(0, 4)
        _train(loader)
        (words,) = _told(epochs)
        assert "its global batch has 8 samples" in words
        assert "elastic.globalBatchSize 6: give 8 there" in words

    @pytest.mark.parametrize("declared", [None, 8, 4, 2])
    def test_is_none_where_every_size_for_it_divides_the_batch(self, declared: int | None) -> None:
        assert why_another("loader 'train'", BATCH, declared) == ""

    def test_is_said_beside_unequal_shares(self) -> None:
        loader, epochs = _loader(3, sized_for=6)
        _train(loader)
        assert [UNEVEN in words for words in _told(epochs)] == [False, True]
