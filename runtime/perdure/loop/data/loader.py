"""The loader that a script iterates: perdure.loop.data.sampling's plan on top of torch's DataLoader.

It adds two promises to the plan's. Iterating draws nothing from the global random generators. Sample ids travel with
the items through dataset, workers and collation, so the ids on record are those that were in the batch.

Made by `Session.loader`; it knows the session only as `BatchHooks`.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import random
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any, Final, NamedTuple, cast

import numpy as np
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate, get_worker_info

from perdure.checkpoint import tensors
from perdure.errors import UserError
from perdure.loop.data.batch_share import share_in
from perdure.loop.data.changing import changeable
from perdure.loop.data.evenness import why_another, why_uneven
from perdure.loop.data.fingerprint import ANOTHER, CHANGED, Probes, SampleDigests, different, probes, take
from perdure.loop.data.randomness import draws_nothing, in_no_checkpoint, own_generators
from perdure.loop.data.sampling import BatchIds, EachShare, SamplingPlan, Share
from perdure.loop.data.source import BatchHooks, Source


class _Batch(NamedTuple):
    """A collated batch and the ids of its items, as a type that torch's pin_memory handles."""

    ids: tuple[int, ...]
    value: Any


class _Fetched(NamedTuple):
    """The items of a batch, and their ids."""

    ids: list[int]
    items: list[Any]


class _Look(NamedTuple):
    """What a look at the dataset has found, in a worker if there are any."""

    fingerprint: SampleDigests
    generators: list[str]
    """Generators made since the loader was: by worker_init_fn, or with the first sample."""


class _Numbered(Dataset[_Fetched]):
    """Hands out whole batches, with their ids. In a worker it seeds the generators for each sample, because a worker's
    state cannot be saved."""

    def __init__(self, dataset: Dataset[Any], seed: int, epoch: int) -> None:
        self.dataset = dataset
        self._seed = seed
        self._epoch = epoch
        self._draws = not draws_nothing(dataset)

    def __getitems__(self, numbers: list[int]) -> _Fetched:
        """A batch, as torch's DataLoader requests it and gives it to the collate function."""
        if isinstance(numbers, Probes):
            return _Fetched([], [_Look(self._taken(numbers), own_generators(self.dataset))])
        dataset = self.dataset
        samples = numbers if numbers[0] >= 0 else [~numbers[0]]
        if get_worker_info() is None:
            return _Fetched(numbers, [dataset[sample] for sample in samples])
        if self._draws:
            return _Fetched(numbers, [self._seeded(sample) for sample in samples])
        # the collate function comes after the last sample, and may draw
        return _Fetched(numbers, [*(dataset[sample] for sample in samples[:-1]), self._seeded(samples[-1])])

    def _taken(self, numbers: Probes) -> SampleDigests:
        """Draws here affect neither the script nor the workers' next samples, which are seeded."""
        python, numpy = random.getstate(), np.random.get_state()
        with torch.random.fork_rng([torch.cuda.current_device()] if torch.cuda.is_initialized() else []):
            found = take(self._alike, numbers)
        random.setstate(python)
        np.random.set_state(numpy)
        return found

    def _alike(self, sample: int) -> Any:
        """The sample as it reads in every epoch, as long as the script does not change it."""
        _seed_all(self._seed, sample)
        return self.dataset[sample]

    def _seeded(self, sample: int) -> Any:
        _seed_all(self._seed, self._epoch, sample)
        return self.dataset[sample]


@dataclass(frozen=True)
class _WorkerInit:
    """Leaves signals of the process group to the parent, and calls the script's function in a worker, with the script's
    dataset in the worker's info instead of the one that numbers samples."""

    function: Callable[[int], None] | None

    def __call__(self, worker: int) -> None:
        os.setpgid(0, 0)  # a signal to the group would end it before the save; only forked ones are apart so far
        if self.function is None:
            return
        info = get_worker_info()
        if info is not None and isinstance(info.dataset, _Numbered):
            object.__setattr__(info, "dataset", info.dataset.dataset)  # it is frozen
        self.function(worker)


def _seed_all(*parts: int) -> None:
    """Takes 8 µs, because it may run for each sample: torch.manual_seed looks at all kinds of devices, in a hundred.

    It cannot wait for the first draw: code that only reads a state, or torch.initial_seed(), leaves no trace.
    """
    seed = int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=4).digest())
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)  # the generator that augmentations use


class _Collate:
    """Collates items and keeps their ids. A negative id marks the placeholder of an empty share."""

    def __init__(self, collate: Callable[[list[Any]], Any]) -> None:
        self._collate = collate

    def __call__(self, fetched: _Fetched) -> _Batch:
        if not fetched.ids:
            return _Batch((), fetched.items[0])
        value = self._collate(fetched.items)
        if fetched.ids[0] < 0:
            return _Batch((), _emptied(value))
        return _Batch(tuple(fetched.ids), value)


def _emptied(value: Any) -> Any:
    """The same structure with no sample in it."""
    if isinstance(value, torch.Tensor):
        return value[:0] if value.dim() else value
    if isinstance(value, dict):
        return {key: _emptied(item) for key, item in value.items()}
    if isinstance(value, tuple):
        parts = [_emptied(item) for item in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if isinstance(value, list):
        nested = any(isinstance(item, torch.Tensor | dict | tuple | list) for item in value)
        return [_emptied(item) for item in value] if nested else []
    return value


class Loader(Source[Any]):
    """This rank's batches of the current epoch, continuing where the last finished step was."""

    def __init__(
        self,
        dataset: Dataset[Any],
        plan: SamplingPlan,
        session: BatchHooks,
        *,
        rank: int,
        world: int,
        options: dict[str, Any],
        sized_for: int | None = None,
        fingerprint: bool = False,
        mesh: DeviceMesh | None = None,
        records: bool = True,
    ) -> None:
        """`sized_for`: the global batch for which the job's sizes were chosen, if that is given.

        With `fingerprint` a few samples are read and hashed before the first batch. `rank` and `world` count places in
        `mesh`, if that is given. One of the ranks with the same place `records` the samples that it used.
        """
        super().__init__(plan.name, session, end=plan.end, unit=plan.batch)
        self.plan = plan
        self.current: Share | None = None
        """The share that the script is working on."""
        self._ids: list[int] = []
        self._rank, self._world = rank, world
        self.mesh = mesh
        """The script's own, of which it hands out this rank's share. A change of ranks renews it, or is refused."""
        self._records = records
        self._sized_for = sized_for
        self._judged = 0
        """The number of ranks whose shares were checked."""
        self._looks = fingerprint
        """Whether to look at the dataset in each epoch, because some scripts change it between epochs."""
        self._looked_in: int | None = None
        """The epoch in which this process did so last."""
        self._postponed = False
        """Whether to look only after the first batch, for which other ranks wait."""
        self._differs = ""
        """The last report about differing datasets."""
        self._seen: SampleDigests = {}
        """Digests of the dataset; until it is read, those of the checkpoint."""
        self._seen_in: int | None = None
        """The epoch of these digests."""
        self._varies = False
        """Whether the dataset was another one in another epoch of one process: the script changes it between epochs."""
        self._form: Mapping[str, Any] = {}
        """What the script could change of the dataset, as it was at the last look."""
        self._left_as: Mapping[str, Any] = {}
        """Digests at the end of an epoch whose body has changed the dataset, or one before it: `samples` in `epoch`."""
        self._sets = False
        """Whether the script has set the dataset again between such an end and the next look."""
        self._take(dataset, options)

    def exhausted(self) -> bool:
        """Whether the dataset is used up: a condition for `session.epochs(stop=[loader.exhausted])`.

        False for a loader that begins each epoch at the first sample.
        """
        return False

    @property
    def decisions(self) -> list[dict[str, Any]]:
        """The decisions about the batch in this training so far, as JSON values; none without `adapt`."""
        return []

    def postpone_look(self) -> None:
        """Ranks wait for the first batch: looks at the dataset in a later epoch."""
        self._postponed = True

    def share(self, rank: int, world: int) -> None:
        """From the next batch on it hands out the share of this rank in this world, or in its mesh, which has changed
        before."""
        if self.mesh is not None:
            place = share_in(self.mesh)
            rank, world, self._records = place.rank, place.world, place.first
        if (rank, world) != (self._rank, self._world):
            self._rank, self._world = rank, world
            self._redraw = True

    def _take(self, dataset: Dataset[Any], options: dict[str, Any]) -> None:
        self._dataset, self._options = dataset, options
        self._collate: Callable[[Any], _Batch] = _Collate(options.get("collate_fn") or default_collate)

    def same(self, dataset: Dataset[Any], plan: SamplingPlan, options: dict[str, Any], **beside: Any) -> Loader:
        """Returns this loader to a script that makes it in its loop. UserError if the arguments differ.

        Datasets and functions are compared only by their types, because a script makes new ones in its loop, too.
        """
        before = {**asdict(self.plan), "dataset": type(self._dataset), **_plain(self._options), **self.beside()}
        now = {**asdict(plan), "dataset": type(dataset), **_plain(options), **beside}
        for name in sorted(before.keys() | now.keys()):
            if before.get(name) != now.get(name):
                raise UserError(
                    f"loader {self.name!r} exists already, with {name}={before.get(name)!r} and not "
                    f"{now.get(name)!r}: give each loader its own name"
                )
        if not self.walking:
            self._take(dataset, options)
        return self

    def beside(self) -> dict[str, Any]:
        """Arguments that are in neither the plan nor the options."""
        return {"train": not self.evaluates, "per_epoch": None, "rewind": True, "shares": self._world}

    def cursor(self, epoch: int) -> dict[str, Any]:
        """What a commit records."""
        return self.plan.cursor(epoch, self.consumed)

    def resume(self, cursor: Mapping[str, Any], epoch: int) -> int:
        """The position that a cursor stands for. UserError if this loader cannot continue from it."""
        return self.plan.resume(cursor, epoch)

    def facts(self) -> dict[str, Any]:
        """What a commit records beside the position, to detect changes."""
        found = {"batch": self.plan.batch, "samples": dict(self._seen), "epoch": self._seen_in, "varies": self._varies}
        counted = {"limit": self.limit, "taken": self.taken}
        left = {"left": dict(self._left_as), "sets": self._sets} if self._left_as else {}
        return found | left | {name: count for name, count in counted.items() if count is not None}

    def recall(self, facts: Mapping[str, Any]) -> None:
        """Takes the facts from the checkpoint, once the position is known."""
        batch, self._seen = facts.get("batch", self.plan.batch), facts.get("samples", {})
        self._seen_in, self._varies = facts.get("epoch"), facts.get("varies", False)
        self._left_as, self._sets = facts.get("left", {}), facts.get("sets", False)
        self.limit, self.taken = facts.get("limit"), facts.get("taken")
        if self.consumed and batch != self.plan.batch:
            self._session.warn(
                f"{self}: batch_size is {self.plan.batch}, and was {batch} for the first {self.consumed} samples of "
                f"this epoch: the rest of it, which has no sample twice, is cut into batches of the new size"
            )

    def remedy(self, batches: int) -> str:
        """What a script does that takes only so many batches of an epoch."""
        samples = f"session.loader(..., per_epoch={batches * self.unit})"
        return f"{samples} gives so many, also in a resumed epoch; or {super().remedy(batches)}"

    def advance(self) -> list[int]:
        """A step is done: what was handed out is consumed. Returns the sample ids it used."""
        super().advance()
        if self._judged != self._world and self.trains:
            self._judge_shares()
        ids, self._ids = self._ids, []
        return ids if self._records else []

    def rewind(self, consumed: int = 0) -> None:
        """Continue at a position in the next epoch."""
        super().rewind(consumed)
        self.current, self._ids = None, []

    def forget(self) -> None:
        """Discards batches that no step consumed."""
        super().forget()
        self._ids = []

    def _judge_shares(self) -> None:
        """Reports unequal shares. A loader that only evaluates may have them."""
        batch, first, self._judged = min(self.plan.batch, self.end), not self._judged, self._world
        notices = (
            why_another(str(self), batch, self._sized_for) if first else "",
            why_uneven(str(self), batch, self._world),
        )
        for words in filter(None, notices):
            self._session.warn(words)

    def _draw(self, epoch: int) -> Iterator[tuple[int, Any]]:
        if (size := len(self._dataset)) != self.plan.samples:  # type: ignore[arg-type]
            raise UserError(
                f"{self}: its dataset has {size} samples, and had {self.plan.samples} when the loader was made, so "
                f"some would never be drawn, or too many: make a loader with another name for each size"
            )
        shares = self._shares(epoch)
        drawn: deque[Share] = deque()
        self._ids = []
        with tensors.cpu_by_default():  # of a generator there a DataLoader draws its seed, and there it forks workers
            ids: Iterable[list[int]] = BatchIds(shares, drawn.append)
            looks, self._postponed = self._is_to_look(epoch) and not self._postponed, False
            first = [probes(self.plan.samples)] if looks else []
            batches = cast("Iterator[_Batch]", iter(self._underneath(epoch, chain(first, ids))))
            if looks:
                self._look_at(next(batches).value, epoch)
        for batch in batches:
            self.current = share = drawn.popleft()
            self._ids.extend(batch.ids)
            yield share.stop, batch.value

    def _shares(self, epoch: int) -> EachShare:
        return self.plan.shares(epoch, self.consumed, self._rank, self._world)

    def _is_to_look(self, epoch: int) -> bool:
        """Once an epoch; for an evaluation only once."""
        return self._looks and (self._looked_in is None or (self._looked_in != epoch and not self.evaluates))

    def _look_at(self, look: _Look, epoch: int) -> None:
        """Compares a dataset that the script changes between epochs only with the same epoch's, or with the result of
        the previous epoch's body."""
        seen, first = look.fingerprint, self._looked_in is None
        follows = bool(self._left_as) and self._left_as["epoch"] == epoch - 1 and self._seen_in != epoch
        number = different(self._left_as["samples"] if follows and not self._sets else self._seen, seen)
        for path in look.generators if first else ():
            self._session.warn(in_no_checkpoint(f"{self}: the dataset", path))
        compared = not self._sets if follows else not self._varies or self._seen_in == epoch
        if number and first and compared:
            why = CHANGED if self._varies or follows else ANOTHER
            self._session.warn(f"{self}: sample {number} is another one than that of the checkpoint: {why}")
        self._sets = self._sets or bool(follows and number and not first)
        self._varies = self._varies or bool(not first and different(self._seen, seen))
        self._seen, self._seen_in, self._looked_in = seen, epoch, epoch
        self._form = changeable(self._dataset)

    def end_epoch(self) -> None:
        """Reads samples after the epoch's body, which may have changed the dataset."""
        super().end_epoch()
        if self._looks and not self.evaluates and self._looked_in is not None and self._looked_in == self._seen_in:
            now, seen = changeable(self._dataset), self._seen
            if now != self._form:
                with tensors.cpu_by_default():
                    batches = iter(self._underneath(self._looked_in, [probes(self.plan.samples)]))
                    seen = cast("_Batch", next(batches)).value.fingerprint
            if self._left_as or different(self._seen, seen):
                self._left_as = {"samples": dict(seen), "epoch": self._looked_in}

    def differs(self, words: str) -> None:
        """Reports a difference between the ranks' datasets, once."""
        if words != self._differs:
            self._session.warn(f"{self}: {words}: {ANOTHER}")
        self._differs = words

    def _underneath(self, epoch: int, ids: Iterable[list[int]]) -> DataLoader[Any]:
        generator = torch.Generator()  # otherwise iterating would draw a seed from the global one
        generator.manual_seed(0)
        options = {name: value for name, value in self._options.items() if name in KEPT - {"collate_fn"}}
        options["worker_init_fn"] = _WorkerInit(options.get("worker_init_fn"))
        return DataLoader(
            _Numbered(self._dataset, self.plan.seed, epoch),
            batch_sampler=ids,
            collate_fn=self._collate,
            generator=generator,
            **options,
        )


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options in a form that can be compared."""
    return {name: type(value) if callable(value) else value for name, value in options.items()}


GIVEN: Final = frozenset({"dataset", "batch_size", "shuffle", "drop_last"})
"""DataLoader parameters that the loader sets itself."""
KEPT: Final = frozenset(
    {
        "num_workers",
        "collate_fn",
        "pin_memory",
        "pin_memory_device",
        "timeout",
        "worker_init_fn",
        "multiprocessing_context",
        "prefetch_factor",
        "persistent_workers",
    }
)
"""DataLoader parameters that are passed on: none of them changes which samples come, or their order."""
REFUSED: Final[Mapping[str, str]] = {
    "sampler": "the session's loader shares out samples itself: for another order, give a dataset in that order",
    "batch_sampler": "the session's loader makes global batches itself: give batch_size",
    "generator": "the session's loader has its own order: give seed",
    "in_order": "a position says how many samples were used, so they have to come in their order: leave it out",
}
"""Parameters that would make a position ambiguous, and what to use instead."""


def check_arguments(name: str, dataset: Any, batch_size: Any, options: Mapping[str, Any]) -> None:
    """UserError, with the remedy, for arguments with which a position could not be saved."""
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise UserError(
            f"loader {name!r}: a {type(dataset).__name__} has no length and no sample by number, so a position in it "
            f"cannot be saved: give a dataset with __len__ and __getitem__, or iterate it yourself along "
            f"`for i in session.steps(n)` and skip to i"
        )
    if isinstance(batch_size, bool) or not hasattr(type(batch_size), "__index__"):
        raise UserError(
            f"loader {name!r}: batch_size is {batch_size!r}: give the global batch, the samples of all ranks together, "
            f"as an integer; a dataset whose items are whole batches has no place here: let an item be one sample"
        )
    for option, value in options.items():
        if option in REFUSED and value is not None and not (option == "in_order" and value):
            raise UserError(f"loader {name!r}: {option}={_shown(value)} is not possible: {REFUSED[option]}")
        if option not in KEPT | REFUSED.keys():
            near = difflib.get_close_matches(option, KEPT, n=1)
            meant = f"{near[0]}= is meant?" if near else f"those for torch's DataLoader are {', '.join(sorted(KEPT))}"
            raise UserError(f"loader {name!r}: {option}= is not known: {meant}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns again when it is iterated
            DataLoader(dataset, **options)
    except (ValueError, TypeError) as error:
        raise UserError(f"loader {name!r}: torch's DataLoader refuses these options: {error}") from None


def _shown(value: Any) -> str:
    return repr(value) if isinstance(value, bool) else "..."
