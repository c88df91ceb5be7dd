"""The sharded models whose ranks `e2e.bench.handover` changes, and what such a change may cost.

A pause may last 0.05 s, 1 ms for each parameter that FSDP shards, and as long as the bytes to move take over bare gloo.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from e2e.bench.handover_restarts import Move
from e2e.bench.report import Figure
from perdure.layout.elastic import ElasticMesh
from perdure.layout.plan import TensorDemand, plan
from perdure.layout.sharding import Placement, Replicate, Shard
from perdure.live.protocol.parties import Attempt
from perdure.live.transfer import mesh_change

KINDS: Final = ("fsdp", "hsdp", "tp", "many")
"""FSDP2; two ranks with the shards, and others with the same; FSDP2 over tensor parallelism of two; 300 parameters."""
NAMES: Final = {"hsdp": ("replicate", "shard"), "tp": ("dp", "tp")}
ROUNDS: Final = 2
WIDE: Final = 1024
LAYERS: Final = 24
MANY: Final = 150
"""Layers of two parameters each."""
SECONDS: Final = 0.05
SECONDS_EACH: Final = 0.001
STATES: Final = 3
"""A parameter and Adam's two averages."""


class Row(NamedTuple):
    """A kind of model, and how its ranks change."""

    kind: str
    move: Move


ROWS: Final = (
    Row("fsdp", Move("2 to 2", 2, 2, (1,), (1,))),
    Row("fsdp", Move("4 to 4", 4, 4, (2,), (2,))),
    Row("fsdp", Move("3 to 4", 3, 4, (2,), ())),
    Row("hsdp", Move("4 to 4", 4, 4, (2,), (2,))),
    Row("tp", Move("4 to 4", 4, 4, (1,), (1,))),
    Row("many", Move("2 to 2", 2, 2, (1,), (1,))),
    Row("many", Move("2 to 3", 2, 3, (1,), ())),
)


def model(kind: str, world: int) -> tuple[Any, DeviceMesh | None]:
    """300 MB with Adam's averages; `many` has 7 MB. And the mesh of ranks that have samples of their own."""
    torch.manual_seed(0)  # replicas begin alike
    names = NAMES.get(kind, ("dp",))
    mesh = init_device_mesh("cpu", (world // 2, 2) if kind in NAMES else (world,), mesh_dim_names=names)
    among = mesh["dp"] if kind == "tp" else None
    net = nn.Sequential(*layers(kind))
    for number, layer in enumerate(net):
        if kind == "tp":
            split = RowwiseParallel() if number % 2 else ColwiseParallel()
            parallelize_module(layer, mesh["tp"], split, src_data_rank=None)
        fully_shard(layer, mesh=among or mesh)
    return fully_shard(net, mesh=among or mesh), among


def layers(kind: str) -> Iterator[nn.Module]:
    """The model's layers, from 64 values to 10 classes."""
    wide, number = (64, MANY - 2) if kind == "many" else (WIDE, LAYERS)
    yield nn.Linear(64, wide, bias=kind == "many")
    for _ in range(number):
        yield nn.Linear(wide, wide, bias=kind == "many")
    yield nn.Linear(wide, 10, bias=kind == "many")


def figures(
    found: Sequence[tuple[Row, Mapping[str, float]]], bandwidth: float, parts: Sequence[str]
) -> Iterator[Figure]:
    """Each row's, from the costs of all rounds."""
    for row in dict.fromkeys(row for row, _ in found):
        costs = [cost for one, cost in found if one == row]
        name, moved = f"{row.kind}, {row.move.name}, live", bytes_moved(row)
        bound = (SECONDS + SECONDS_EACH * costs[0]["parameters"] + moved / bandwidth) * 1e3
        aim = f"50 ms + 1 ms x {costs[0]['parameters']:.0f} + {moved / 1e6:.0f} MB / gloo alone"
        yield Figure(f"{name}: pause", "ms", tuple(cost["pause"] * 1e3 for cost in costs), bound, aim)
        yield Figure(f"{name}: no rank trains", "ms", tuple(cost["nobody"] * 1e3 for cost in costs), bound, aim)
        yield Figure(f"{name}: memory of an old rank", "MiB", tuple(cost["extra"] for cost in costs), 256, "allowed")
        for part in parts:
            yield Figure(f"{name}: {part}", "ms", tuple(cost.get(part, 0.0) * 1e3 for cost in costs))


def bytes_moved(row: Row) -> int:
    """From old ranks to others, of parameters and averages."""
    move = row.move
    attempt = Attempt(1, 2, move.old, move.joins, move.leavers)
    change = mesh_change(attempt, ElasticMesh((move.old // 2, 2) if row.kind in NAMES else (move.old,)))
    demands = []
    with torch.device("meta"):
        built = list(layers(row.kind))
    for number, layer in enumerate(built):
        for name, parameter in layer.named_parameters():
            moved, _ = change.of(parameter.shape, placements(row.kind, number))
            demands.append(TensorDemand(f"{number}.{name}", STATES * parameter.element_size(), moved))
    return sum(one.size for one in plan(demands) if one.source != one.destination)


def placements(kind: str, number: int) -> tuple[Placement, ...]:
    """Of a layer's parameters. For the bytes it does not matter in which order a dimension is split twice."""
    match kind:
        case "hsdp":
            return Replicate(), Shard(0)
        case "tp":
            return Shard(0), Shard(number % 2)
    return (Shard(0),)
