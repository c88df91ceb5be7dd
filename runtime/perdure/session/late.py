"""Registers a script's objects, also late: for example an optimizer for layers that are unfrozen in the third epoch.

A checkpoint records which of its objects were registered late. A resumed script registers them late again, and gets
their state from the checkpoint at once. It has to do so before the first step, because the saved training had them by
then. Until then that state is kept, and saved with the rest. Called by `Session` and the boundary.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from perdure.checkpoint.stage import stage
from perdure.console import say
from perdure.errors import UserError
from perdure.loop.run import Run
from perdure.session.resuming import tell_overruled
from perdure.state.merging import Merge, check_merges


def register(
    run: Run, things: Mapping[str, Any], *, absent: str | None, rename: Mapping[str, str], merge: Mapping[str, Merge]
) -> None:
    """Adds objects to what is saved and restored. The parameters are those of `Session.register`."""
    if absent not in (None, "refuse", "keep"):
        raise UserError(f"register(absent={absent!r}): write absent='keep' or absent='refuse'")
    merges = check_merges(merge, list(things))
    if run.opening:
        register_late(run, things, rename, merges, absent)
        return
    run.registry.rename(rename)
    for name, thing in things.items():
        run.registry.add(name, thing, keeps=absent == "keep", merge=merges.get(name))


def register_late(
    run: Run, things: Mapping[str, Any], rename: Mapping[str, str], merges: Collection[str], absent: str | None
) -> None:
    """Adds objects late. When this returns they have their state from the checkpoint, or begin as they are if it has
    none.

    With `absent="refuse"` the checkpoint that the run resumes from has to hold them. UserError for that, for objects
    that no checkpoint can hold, and for `merges`, the names of objects that would be each rank's own.
    """
    if merges:
        raise UserError(f"register(merge=...): register {', '.join(merges)} before epochs(): it is each rank's own")
    registry = run.registry
    run.images.renew()
    run.background.settle()
    run.mirror.renew()
    before = registry.names
    for name, thing in things.items():
        registry.add(name, thing, keeps=absent == "keep", begins=absent != "refuse", late=True)
    lacking, kept = registry.claim(registry.names - before, rename)
    if registry.loaded and lacking and absent == "refuse":
        raise UserError(
            f"register({', '.join(lacking)}, absent='refuse'): the checkpoint does not hold it{_left(run)}: map old "
            f"names to new ones with register(rename={{...}}), or leave absent out where it begins here"
        )
    if registry.loaded and (lacking or kept) and run.rank == 0:
        say(f"not in the checkpoint, so as the script has made it: {', '.join([*lacking, *kept])}{_left(run)}")
    tell_overruled(run, registry.names - before)
    if run.settings.preview:  # the preview checks all objects itself
        registry.rename(rename)
    else:
        stage(run.state(), run.rank, run.world)


def settle(run: Run, *, strict: bool = False) -> None:
    """Restores from the checkpoint what the script has added to registered modules and optimizers."""
    if run.registry.not_registered_yet:
        run.background.settle()
        run.mirror.settle()
    if run.registry.settle(strict=strict):
        run.images.renew()


def check_all_registered(run: Run) -> None:
    """A step is done. UserError if the saved training had objects that this one lacks, or if the script has changed an
    optimizer's groups in a way that no later run could load."""
    settle(run, strict=True)
    if names := run.registry.not_registered_yet:
        raise UserError(
            f"{awaits(names)}, and this run has trained a step without: map old names to new ones with "
            f"register(rename={{...}}), or use another root"
        )


def awaits(names: Sequence[str]) -> str:
    """What a checkpoint with these objects expects of the script."""
    return (
        f"the checkpoint holds {_some(names)}, which the script registered, made or added when its run had begun: a "
        f"resumed run does so again before its first step, as in `if epoch >= 3 and late is None`"
    )


def _some(names: Sequence[str]) -> str:
    return ", ".join([*names[:3], "..."] if len(names) > 3 else names)


def _left(run: Run) -> str:
    names = run.registry.not_registered_yet
    return f" (it holds {', '.join(names)}, which are not registered yet)" if names else ""
