"""What a script registers, before its run has begun or late: an optimizer for what is unfrozen in the third epoch, say.

A checkpoint says which of its objects were registered late. A script that goes on from it registers these late again,
and each gets what the checkpoint holds of it right then. That has to be before the first step, as the training that was
saved had them by then; until then they are kept, and saved with the rest. Called by `Session` and the boundary.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from perdure.checkpoint.stage import stage
from perdure.console import say
from perdure.errors import UserError
from perdure.loop.run import Run
from perdure.state.merging import Merge, check_merges


def register(
    run: Run, things: Mapping[str, Any], *, absent: str | None, rename: Mapping[str, str], merge: Mapping[str, Merge]
) -> None:
    """Adds these to what is saved and restored; the parameters are those of `Session.register`."""
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
    """Adds these; what the checkpoint holds of them they have when this returns, and else they begin as they are.

    With `absent="refuse"` a checkpoint that the run goes on from has to hold them. UserError for that, for what no
    checkpoint could hold, and for `merges`, the names of what is to be each rank's own.
    """
    if merges:
        raise UserError(f"register(merge=...): register {', '.join(merges)} before epochs(): it is each rank's own")
    registry = run.registry
    run.images.renew()
    before = registry.names
    for name, thing in things.items():
        registry.add(name, thing, keeps=absent == "keep", begins=absent != "refuse", late=True)
    lacking, kept = registry.claim(registry.names - before, rename)
    if registry.loaded and lacking and absent == "refuse":
        raise UserError(
            f"register({', '.join(lacking)}, absent='refuse'): the checkpoint does not hold it{_left(run)}: name what "
            f"is called otherwise now by register(rename={{...}}), or leave absent out where it begins here"
        )
    if registry.loaded and (lacking or kept) and run.rank == 0:
        say(f"not in the checkpoint, so as the script has made it: {', '.join([*lacking, *kept])}{_left(run)}")
    if run.settings.preview:  # which looks at the whole itself
        registry.rename(rename)
    else:
        stage(run.state(), 0, 1)


def settle(run: Run, *, strict: bool = False) -> None:
    """What the script has added to registered modules and optimizers gets what the checkpoint holds of it."""
    if run.registry.settle(strict=strict):
        run.images.renew()


def check_claimed(run: Run) -> None:
    """A step is done. UserError if the training that was saved had objects that this one did without, or if the script
    has changed groups of an optimizer as no later run could load it."""
    settle(run, strict=True)
    if names := run.registry.unclaimed:
        raise UserError(
            f"{awaits(names)}, and this run has trained a step without: name what is called otherwise now by "
            f"register(rename={{...}}), or use another root"
        )


def awaits(names: Sequence[str]) -> str:
    """What such a checkpoint asks of the script."""
    return (
        f"the checkpoint holds {_some(names)}, which the script registered, made or added when its run had begun: a "
        f"resumed run does so again before its first step, as in `if epoch >= 3 and late is None`"
    )


def _some(names: Sequence[str]) -> str:
    return ", ".join([*names[:3], "..."] if len(names) > 3 else names)


def _left(run: Run) -> str:
    names = run.registry.unclaimed
    return f" (it holds {', '.join(names)}, which nobody has registered yet)" if names else ""
