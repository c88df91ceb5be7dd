"""Whether this script's ranks can change while it trains, and if not, why.

What holds on to the ranks it was made with, and is not the session's, would go on among the old members without a
word: gloo's groups do not end with those who leave. So it is looked for, where it costs little at the beginning and
after `restore()`, and thoroughly in a thread of every attempt. Called by joining, resuming and handing.
"""

from __future__ import annotations

import gc
import os
from typing import Any, Final

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data.distributed import DistributedSampler

from perdure.channel import Attached
from perdure.contract import Env
from perdure.group.world import foreign
from perdure.session.run import Run

KEEPERS: Final[dict[str, type]] = {
    "a DistributedDataParallel that the script has made itself: wrap the model with session.wrap": (
        DistributedDataParallel
    ),
    "a DeviceMesh of the script's own": DeviceMesh,
    "a DistributedSampler: use session.loader": DistributedSampler,
}
"""Types whose objects keep the ranks they were made with."""


def tell_attached(run: Run) -> None:
    """Tells the agent that there is a session here, and whether it can be offered a hand-over."""
    why = obstacle(run)
    run.tell(Attached(os.getpid(), not why, why, run.settings.image_file is not None))


def obstacle(run: Run) -> str:
    """Why this process cannot change its ranks while it trains, as far as that is seen at once, or nothing."""
    if not run.settings.live:
        return f"{Env.LIVE}=no"
    if run.settings.run is None:
        return "nobody has numbered this run"
    if run.settings.master_is_elsewhere:
        return "torchrun has started the ranks, and keeps their store"
    if torch.cuda.is_available():
        return "on GPUs ranks cannot be connected beside a living run yet"
    if groups := foreign():
        return f"process groups of the script's own: {', '.join(groups[:3])}"
    return next((why for replica in run.replicas if (why := replica.lasting)), "")


def hidden_obstacle(run: Run) -> str:
    """The same for what only a look at every object there is finds: some tenths of a second, from any thread."""
    own = {id(part) for replica in run.replicas for part in replica.inside}
    for thing in gc.get_objects():
        kind: Any = type(thing)
        for why, keeper in KEEPERS.items():
            if issubclass(kind, keeper) and id(thing) not in own:
                return why
    return ""
