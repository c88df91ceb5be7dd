"""What a script gets from a loader: its batches, their ids, and no draw from the global generators."""

from __future__ import annotations

import gc
import inspect
import itertools
import random
from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate, get_worker_info
from torch.utils.data._utils.pin_memory import pin_memory

from perdure.errors import UserError
from perdure.loop.data.loader import GIVEN, KEPT, REFUSED, Loader, _Fetched, check_arguments
from perdure.loop.data.sampling import SamplingPlan
from perdure.loop.data.source import Source


class Squares(Dataset[Any]):
    """Sample n is (n * n, a random number drawn where the sample is made)."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, n: int) -> dict[str, Any]:
        return {"square": torch.tensor([n * n]), "noise": torch.rand(1), "name": f"sample {n}"}


class Epochs:
    """A session's part in a loader's life, and the messages it got."""

    def __init__(self, epoch: int | None = 0) -> None:
        self.epoch = epoch
        self.told: list[str] = []

    def begin_pass(self, source: Source[Any]) -> None:  # noqa: ARG002
        self.told.append("begin")

    def batch_requested(self, source: Source[Any]) -> None:
        self.told.append(f"asked at {source.handed_out}")

    def draw_begins(self, source: Source[Any]) -> None:
        self.told.append(f"draws at {source.handed_out}")

    def batch_handed_out(self, source: Source[Any]) -> None:
        self.told.append(f"handed {source.handed_out}")

    def end_pass(self, source: Source[Any]) -> None:
        self.told.append("left" if source.left else "end")

    def warn(self, words: str) -> None:
        self.told.append(words)


def loader(size: int = 21, *, rank: int = 0, world: int = 1, epochs: Epochs | None = None, **options: Any) -> Loader:
    plan = SamplingPlan("train", size, batch=8, seed=3)
    return Loader(Squares(size), plan, epochs or Epochs(), rank=rank, world=world, options=options)


def states() -> list[Any]:
    legacy: Any = np.random.get_state()
    return [torch.get_rng_state().tolist(), random.getstate(), legacy[1].tolist()]


def test_the_ids_that_are_recorded_are_those_of_the_items_in_the_batch() -> None:
    one = loader()
    for batch in one:
        found = one.advance()
        assert batch["square"].flatten().tolist() == [n * n for n in found]
        assert batch["name"] == [f"sample {n}" for n in found]


@pytest.mark.parametrize("workers", [0, 2])
def test_iterating_leaves_the_global_generators_alone(workers: int) -> None:
    class Fixed(Squares):
        def __getitem__(self, n: int) -> dict[str, Any]:
            return {"number": n}

    before = states()
    plan = SamplingPlan("train", 21, batch=8)
    list(Loader(Fixed(21), plan, Epochs(), rank=0, world=1, options={"num_workers": workers}))
    assert states() == before


def test_iterating_does_not_depend_on_the_default_device() -> None:
    torch.set_default_device("meta")
    try:
        found = list(loader(collate_fn=len))
    finally:
        torch.set_default_device(None)
    assert found == [8, 8, 5]


def test_a_worker_inherits_no_context_of_torchs_that_each_operation_would_pass_through() -> None:
    inherited = loader(num_workers=1, collate_fn=lambda _: len(torch.overrides._get_current_function_mode_stack()))
    assert list(inherited) == [0, 0, 0]


def test_a_rank_without_a_sample_gets_the_same_structure_with_nothing_in_it() -> None:
    last = [list(loader(17, rank=rank, world=3))[-1] for rank in range(3)]
    assert [batch["square"].shape for batch in last] == [(1, 1), (0, 1), (0, 1)]
    assert last[2]["name"] == []


def test_an_empty_part_has_no_ids_and_weighs_nothing() -> None:
    one = loader(17, rank=2, world=3)
    for _ in one:
        ids = one.advance()
    assert ids == []
    assert one.current is not None
    assert one.current.weight == 0.0


def test_what_was_handed_out_counts_only_once_a_step_is_done() -> None:
    one = loader()
    walk = iter(one)
    next(walk), next(walk)
    assert one.consumed == 0
    one.advance()
    assert one.consumed == 16


def test_the_session_is_told_of_every_batch_before_it_is_drawn() -> None:
    epochs = Epochs()
    drawn: list[int] = []

    class Watched(Squares):
        def __getitem__(self, n: int) -> dict[str, Any]:
            drawn.append(len(epochs.told))
            return super().__getitem__(n)

    walk = iter(Loader(Watched(21), SamplingPlan("train", 21, batch=8), epochs, rank=0, world=1, options={}))
    next(walk), next(walk)
    assert epochs.told == [
        *("begin", "asked at 0", "draws at 0", "handed 8"),
        *("asked at 8", "draws at 8", "handed 16"),
    ]
    assert set(drawn) == {3, 6}
    list(walk)
    assert epochs.told[-2:] == ["handed 21", "end"]


def test_a_loop_that_is_left_is_reported_and_may_be_followed_by_another() -> None:
    epochs = Epochs()
    one = loader(epochs=epochs)
    for _ in one:
        break
    assert (epochs.told[-1], one.left, one.remaining) == ("left", True, 2)
    assert len(list(one)) == 3


def test_of_an_epoch_of_which_nothing_is_left_no_batch_is_handed_out() -> None:
    epochs = Epochs()
    one = loader(epochs=epochs)
    one.rewind(21)
    assert list(one) == []
    assert epochs.told == ["begin", "end"]


def test_random_numbers_in_workers_depend_on_the_epoch_and_the_sample_alone() -> None:
    def noise(consumed: int, workers: int, epoch: int = 0) -> dict[int, float]:
        one = loader(num_workers=workers, epochs=Epochs(epoch))
        found: dict[int, float] = {}
        one.rewind(consumed)
        for batch in one:
            found |= dict(zip(one.advance(), batch["noise"].flatten().tolist(), strict=True))
        return found

    straight, resumed = noise(0, 1), noise(8, 2)
    assert len(set(straight.values())) == len(straight), "no two samples draw alike"
    assert {sample: straight[sample] for sample in resumed} == resumed
    assert not set(noise(0, 1, epoch=1).values()) & set(straight.values()), "each epoch augments anew"


def test_a_collate_function_draws_the_same_whether_the_samples_themselves_can_draw_or_not() -> None:
    class Own(TensorDataset):
        """It might draw."""

    def draw(_: Any) -> list[float]:
        return [torch.rand(1).item(), np.random.random_sample(), random.random()]  # noqa: S311

    def drawn(dataset: Dataset[Any], workers: int, world: int = 1) -> list[list[float]]:
        options = {"num_workers": workers, "collate_fn": draw}
        plan = SamplingPlan("train", 21, batch=8)
        return [*Loader(dataset, plan, Epochs(), rank=world - 1, world=world, options=options)]

    numbers = torch.arange(21)
    found = drawn(TensorDataset(numbers), 1)
    assert len({one for batch in found for one in batch}) == 9
    assert found == drawn(TensorDataset(numbers), 2) == drawn(Own(numbers), 1)


def test_a_loader_outside_of_an_epoch_is_a_mistake_that_is_named() -> None:
    with pytest.raises(UserError, match=r"session\.epochs"):
        iter(loader(epochs=Epochs(None)))


def test_a_second_pass_in_one_epoch_is_a_mistake_that_is_named() -> None:
    one = loader()
    for _ in one:
        one.advance()
    with pytest.raises(UserError, match="once an epoch"):
        iter(one)


def test_batches_that_no_step_consumed_may_be_walked_again() -> None:
    one = loader()
    assert len(list(one)) == len(list(one)) == 3


def test_a_loader_is_walked_by_one_loop_at_a_time() -> None:
    one = loader()
    walk = iter(one)
    next(walk)
    with pytest.raises(UserError, match="being iterated already"):
        next(iter(one))


def test_its_length_is_the_whole_epochs_and_what_remains_is_said_beside_it() -> None:
    one = loader()
    assert (len(one), one.remaining) == (3, 3)
    one.rewind(8)
    assert (len(one), one.remaining, one.batch_index) == (3, 2, 1)
    walk = iter(one)
    next(walk)
    assert (len(one), one.remaining, one.batch_index) == (3, 1, 1)


def warnings(epochs: Epochs) -> list[str]:
    return [words for words in epochs.told if " is re" in words]


@pytest.mark.parametrize(
    "around",
    [
        cycle,
        lambda other: cycle(zip(other)),
        lambda other: map(str, cycle(other)),
    ],
    ids=["cycle", "cycle-of-zip", "map-of-cycle"],
)
def test_a_loader_that_is_repeated_by_cycle_is_reported_once(around: Callable[[Loader], Iterator[Any]]) -> None:
    epochs = Epochs()
    one = loader(epochs=epochs)
    for _ in zip(range(8), around(one), strict=False):
        one.advance()
    assert [words[:45] for words in warnings(epochs)] == ["loader 'train' is repeated by itertools.cycle"]


@pytest.mark.parametrize(
    "around",
    [lambda one: one, lambda one: zip(one, range(3), strict=True), lambda one: itertools.zip_longest(range(9), one)],
    ids=["itself", "zip", "zip_longest"],
)
def test_a_loader_whose_batches_come_once_is_not_reported(around: Callable[[Loader], Iterator[Any]]) -> None:
    epochs = Epochs()
    one = loader(epochs=epochs)
    for _ in around(one):
        one.advance()
    assert warnings(epochs) == []


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (enumerate, True),
        (lambda one: enumerate(zip(one, range(9), strict=False)), True),
        (lambda one: enumerate(one, one.batch_index), False),
        (lambda one: one, False),
    ],
    ids=["from-0", "zip-from-0", "from-the-index", "none"],
)
def test_a_count_that_starts_over_in_a_resumed_epoch_is_reported(
    count: Callable[[Loader], Iterator[Any]], said: bool
) -> None:
    epochs = Epochs()
    one = loader(epochs=epochs)
    one.rewind(8)
    for _ in count(one):
        one.advance()
    assert ["at batch 1, and the script's enumerate() counts from 0" in words for words in warnings(epochs)] == (
        [True] if said else []
    )


def test_a_pass_that_is_given_up_is_over_at_once_and_not_when_garbage_is_collected() -> None:
    one, other = loader(), loader(13)
    gc.disable()
    try:
        for _ in range(2):
            assert len([other.advance() for _ in zip(one, other, strict=False)]) == 2
            assert one.left
            one.rewind()
            other.rewind()
    finally:
        gc.enable()


def test_a_count_in_an_epoch_that_is_not_resumed_is_fine() -> None:
    epochs = Epochs()
    for _ in enumerate(loader(epochs=epochs)):
        pass
    assert warnings(epochs) == []


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


@pytest.mark.parametrize(
    ("dataset", "options", "said"),
    [
        (Stream(), {}, "Stream has no length"),
        ({1: 2}.keys(), {}, "dict_keys has no length"),
        (Squares(3), {"sampler": [1]}, "sampler=... is not possible"),
        (Squares(3), {"batch_sampler": [[1]]}, "batch_sampler=... is not possible: .* batch_size"),
        (Squares(3), {"generator": torch.Generator()}, "generator=... is not possible: .* seed"),
        (Squares(3), {"in_order": False, "num_workers": 2}, "in_order=False is not possible: .* leave it out"),
        (Squares(3), {"prefetch_factor": 2}, "torch's DataLoader refuses these options: prefetch_factor"),
        (Squares(3), {"timeout": -1}, "torch's DataLoader refuses these options: timeout"),
        (Squares(3), {"num_worker": 2}, "num_worker= is not known: num_workers= is meant"),
        (Squares(3), {"colour": 2}, "colour= is not known: those for torch's DataLoader are collate_fn, "),
    ],
)
def test_what_has_no_position_that_could_be_saved_is_refused_with_the_remedy(
    dataset: Any, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(UserError, match=f"loader 'train': .*{said}"):
        check_arguments("train", dataset, 8, options)


def test_every_parameter_of_torchs_loader_is_decided() -> None:
    assert set(inspect.signature(DataLoader).parameters) == GIVEN | KEPT | REFUSED.keys()


@pytest.mark.parametrize(
    "options",
    [
        {"in_order": True, "num_workers": 2},
        {"sampler": None, "batch_sampler": None, "generator": None},
        {"collate_fn": default_collate},
        {"num_workers": 2, "prefetch_factor": 3, "persistent_workers": True},
        {"num_workers": 1, "timeout": 60, "multiprocessing_context": "forkserver"},
        {"num_workers": 2, "worker_init_fn": torch.manual_seed},
        {"pin_memory": False, "pin_memory_device": ""},
    ],
    ids="-".join,
)
def test_what_goes_to_torchs_loader_changes_neither_the_samples_nor_their_order(options: dict[str, Any]) -> None:
    def batches(**options: Any) -> list[tuple[list[int], list[str], list[int]]]:
        check_arguments("train", Squares(21), 8, options)
        one = loader(**options)
        return [(batch["square"].flatten().tolist(), batch["name"], one.advance()) for batch in one]

    assert batches(**options) == batches()


def renamed(worker: int) -> None:
    info = get_worker_info()
    assert info is not None
    vars(info.dataset)["name"] = f"worker {worker}"


class Named(Squares):
    name = "nobody"

    def __getitem__(self, number: int) -> Any:
        return self.name


def test_a_worker_init_fn_finds_the_scripts_own_dataset() -> None:
    plan, options = SamplingPlan("train", 21, batch=8, seed=3), {"num_workers": 1, "worker_init_fn": renamed}
    batches = Loader(Named(21), plan, Epochs(), rank=0, world=1, options=options)
    assert {name for batch in batches for name in batch} == {"worker 0"}


@pytest.mark.parametrize("batch_size", [None, 2.5, "8", True], ids=str)
def test_a_batch_size_that_is_no_integer_is_refused_by_its_name(batch_size: Any) -> None:
    with pytest.raises(UserError, match=f"batch_size is {batch_size!r}: give the global batch"):
        check_arguments("train", Squares(3), batch_size, {})


def test_a_batch_size_may_be_any_kind_of_integer() -> None:
    check_arguments("train", Squares(3), np.int64(2), {})


def test_pinning_memory_reaches_the_scripts_own_batches() -> None:
    class Batch:
        pinned = False

        def pin_memory(self) -> Batch:
            self.pinned = True
            return self

    found = pin_memory(loader(collate_fn=lambda _: Batch())._collate(_Fetched([7], [None])))
    assert (found.ids, found.value.pinned) == ((7,), True)
