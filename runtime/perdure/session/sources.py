"""Makes a script's sources of batches: loaders over a dataset, and step numbers for samples of the script's own.

For `Session.loader` and `Session.steps`. Each source is part of the run's position, which a commit holds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from torch.distributed.device_mesh import DeviceMesh
from torch.utils.data import Dataset

from perdure.errors import UserError
from perdure.loop.adapting.adapt import Adapt
from perdure.loop.adapting.adaptive_loader import AdaptiveLoader
from perdure.loop.data.evaluating import Evaluation
from perdure.loop.data.loader import Loader, check_arguments
from perdure.loop.data.randomness import own_generators
from perdure.loop.data.reading import Reader, read_portion
from perdure.loop.data.sampling import SamplingPlan
from perdure.loop.position.counting import NAME as STEPS
from perdure.loop.position.counting import Steps
from perdure.loop.position.progress import RESERVED
from perdure.session.acting import Acting, check, tell_scaling
from perdure.session.core import Core
from perdure.session.mesh_places import check_batches, place_in


@dataclass(frozen=True)
class Passes:
    """How a loader goes over its dataset."""

    train: bool
    per_epoch: int | None
    rewind: bool


@dataclass(frozen=True)
class LoaderExtras:
    """What a loader has beside its order and its passes."""

    fingerprint: bool
    mesh: DeviceMesh | None
    adapt: Adapt | None


def loader_of(
    core: Core,
    dataset: Dataset[Any],
    order: tuple[str, int, int | None, bool | None, bool],
    passes: Passes,
    beside: LoaderExtras,
    *,
    options: dict[str, Any],
) -> Loader:
    """The loader of that name, made by the first call. `order`: name, batch size, seed, shuffle and drop_last."""
    name, batch_size, seed, shuffle, drop_last = order
    check_arguments(name, dataset, batch_size, options)
    run, size = core.run, len(dataset)  # type: ignore[arg-type]
    seed, shuffle = core.seed if seed is None else seed, passes.train if shuffle is None else shuffle
    plan = SamplingPlan(name, size, batch_size, seed, shuffle, drop_last)
    place = place_in(run, name, beside.mesh)
    adapts: dict[str, Any] = {}
    if beside.adapt is not None:
        given = {"train=False": not passes.train, "per_epoch": passes.per_epoch is not None}
        check(
            run, f"loader {name!r}", beside.adapt, given | {"rewind=False": not passes.rewind, "drop_last": drop_last}
        )
        adapts = {"adapt": beside.adapt}
    known = run.progress.source(name)
    if isinstance(known, Loader):
        return known.same(dataset, plan, options, **asdict(passes), **adapts, shares=place.world)
    if name in RESERVED:
        raise UserError(f"loader {name!r}: the name is taken by the session itself: give another one")
    core.warn_of_generators(f"loader {name!r}: the dataset", dataset)
    core.warn_of_generators(f"loader {name!r}: the collate_fn", options.get("collate_fn"))
    portion = read_portion(plan, passes.per_epoch, train=passes.train, rewind=passes.rewind)
    kind: Callable[..., Loader]
    kind = (Loader if passes.train else Evaluation) if portion is None else partial(Reader, portion=portion)
    if beside.adapt is not None:
        if beside.adapt.decisions is None:
            run.measure(batch_size)
        kind = partial(AdaptiveLoader, parts=Acting(run), **adapts)
    loader = kind(
        dataset,
        plan,
        core.boundary,
        rank=place.rank,
        world=place.world,
        options=options,
        sized_for=run.settings.global_batch_size,
        fingerprint=beside.fingerprint and not own_generators(dataset),
        mesh=beside.mesh,
        records=place.first,
    )
    if run.joining:
        loader.postpone_look()
    run.progress.add(loader)
    if isinstance(loader, AdaptiveLoader):
        tell_scaling(run, loader)
    if run.opening:
        check_batches(run)
    return loader


def steps_of(core: Core, count: int) -> Steps:
    """The step numbers from 0 to `count`-1. Another `count` makes a new source, unless the known one has handed out
    numbers."""
    known = core.run.progress.source(STEPS)
    if isinstance(known, Steps) and (known.end == count or known.handed_out):
        return known
    steps = Steps(core.boundary, count)
    core.run.progress.add(steps)
    return steps
