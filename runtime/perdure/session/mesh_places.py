"""Which share of a batch a rank gets if some ranks need the same one: tensor parallelism splits the work on a batch.

Called by perdure.session.sources, and by perdure.session.core before training.
"""

from __future__ import annotations

from torch.distributed.device_mesh import DeviceMesh

from perdure.errors import UserError
from perdure.loop.data.batch_share import BatchShare, share_in
from perdure.loop.data.loader import Loader
from perdure.loop.run import Run


def place_in(run: Run, name: str, mesh: DeviceMesh | None) -> BatchShare:
    """This rank's place in the mesh dimensions whose ranks get different samples; without a mesh in all ranks.

    UserError if the mesh and its repetitions are not all ranks.
    """
    if mesh is None:
        return BatchShare(run.rank, run.world)
    place, ranks = mesh.get_coordinate(), mesh.mesh.flatten().tolist()
    if place is None or run.world % len(ranks) or set(ranks) - set(range(run.world)):
        raise UserError(
            f"loader {name!r}: mesh has the ranks {ranks}, and this is rank {run.rank} of {run.world}: give dimensions "
            f"of a mesh of all ranks, such as mesh['dp']"
        )
    return share_in(mesh)


def check_batches(run: Run) -> None:
    """UserError for a model of which several ranks compute parts of one batch, if a loader gives each rank its own."""
    model = run.registry.tensor_parallel
    loaders = (source for source in run.progress.sources if isinstance(source, Loader) and source.mesh is None)
    if model and run.world > 1 and (loader := next(loaders, None)):
        raise UserError(
            f"{loader} gives each rank other samples, and ranks that share {model}'s tensor parallelism compute parts "
            f"of one batch: name the mesh dimensions whose ranks get different samples, such as "
            f"session.loader(..., mesh=mesh['dp'])"
        )
