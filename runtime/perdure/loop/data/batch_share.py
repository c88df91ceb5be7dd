"""Which share of a batch a rank gets in a device mesh, whose other dimensions split the work on a share.

Called by the loader after a change of ranks, and by perdure.session.mesh_places.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True)
class BatchShare:
    """The share that a loader hands to this rank: number `rank` of `world`."""

    rank: int
    world: int
    first: bool = True
    """Whether this rank has the lowest number of those with this share. Its samples are on record."""


def share_in(mesh: DeviceMesh) -> BatchShare:
    """This rank's share in a mesh that it is in."""
    number = 0
    for coordinate, size in zip(mesh.get_coordinate() or (), mesh.shape, strict=True):
        number = number * size + coordinate
    return BatchShare(number, math.prod(mesh.shape), first=0 in mesh.mesh.flatten().tolist())
