"""Plays recipes in one process that has imported torch: each recipe, each time, in forked ranks of its own."""

import gc
import importlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

from perdure.loop.run import OWN_STOPPING
from perdure.session import current
from perdure.session.core import Core
from tests.recipes.held import steps_counted_by, tell, tell_weights, whole
from tests.unit.runtime.live.scripts import await_ready

SECONDS = 300
"""A rank that hangs ends after so long."""


def count_steps(note: Path, interrupted: int | None, waits: int | None) -> None:
    """Notes each step of an optimizer, which is not yet the session's; in the n-th SIGTERM comes to this process, or it
    waits until another one can take over, if none has yet."""
    note.touch()

    def count(*_: object) -> None:
        with note.open("a") as file:
            file.write(".")
        if note.stat().st_size == interrupted:
            os.kill(os.getpid(), signal.SIGTERM)
        if note.stat().st_size == waits:
            core = current._core("play")
            if isinstance(core, Core) and core.run.settings.run == 1:
                await_ready(core)

    register_optimizer_step_post_hook(count)
    steps_counted_by.append(count)


def registered(core: Core) -> dict[str, object]:
    """All that the session saves for all ranks. Random generators are each rank's own."""
    things = {name: whole(thing) for name, thing in core.run.registry.named.items() if name != OWN_STOPPING}
    own = core.run.registry.named[OWN_STOPPING].state_dict()
    del own["seconds"]  # of training, which have gone on until a save is done
    return {**things, **own, "position": core.run.progress.position()}


def tell_registered() -> None:
    """Tells what a session holds as soon as it is restored, and each time it has saved."""
    restore = Core.restore

    def told(self: Core) -> None:
        begins = self.run.opening is None
        if begins:
            self.add_hook("committed", lambda _: tell(registered(self), when="saved"))
        restore(self)
        if begins:
            tell(registered(self), when="begun")

    Core.restore = told  # type: ignore[method-assign]


def rank(recipe: str, folder: Path, number: int, asked: dict[str, Any]) -> int:
    module, name = recipe.split(".")
    try:
        tell_registered()
        count_steps(folder / f"steps-{number}", asked["interrupted"], asked["waits"][number])
        played: Callable[[], dict[str, object]] = getattr(
            importlib.import_module(f"tests.recipes.scripts.{module}"), name
        )
        held = played()
        tell(held)
        tell_weights(held)
    except SystemExit as left:
        return left.code if isinstance(left.code, int) else int(left.code is not None)
    except BaseException:  # noqa: BLE001 - what becomes of a script is for the test to judge
        traceback.print_exc()
        return 1
    return 0


def forked(number: int, asked: dict[str, Any]) -> int:
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        signal.alarm(SECONDS)
        folder = Path(asked["folder"])
        output = os.open(folder / f"output-{number}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.environ.update(asked["environ"][number])
        os.chdir(folder)
        status = rank(asked["recipe"], folder, number, asked)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


def main() -> None:
    """What all recipes import is here before the first fork: torch's compiler, which optimizers ask for, for one."""
    for needed in ("torch._dynamo", "torch.distributed", "perdure.session.session", *sys.argv[1:]):
        importlib.import_module(needed)
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        asked = json.loads(line)
        ranks = [forked(number, asked) for number in range(len(asked["environ"]))]
        ended = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in ranks]
        print(json.dumps(ended), flush=True)
    os._exit(0)  # triton's bindings complain at length when Python ends


if __name__ == "__main__":
    main()
