"""The header that rank 0 sends ahead of the tensors: nothing is lost on its way, and it says which state they make."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields

import torch

from perdure.checkpoint.codec import encode
from perdure.checkpoint.manifest import REPLICATED, SHARED, Item
from perdure.checkpoint.state import RankState
from perdure.live.header import Header
from perdure.log.position import Position
from perdure.log.reader import ReadPosition
from perdure.wire import CommitRef

HEADER = Header(
    position=Position(12, 3, {"train": 5}),
    items=(
        Item(SHARED, "net.weight", "float32", (2, 2), "cpu", 0, 16, order=(1, 0)),
        Item(REPLICATED, "net.count", "int64", (), "cpu", 16, 8),
    ),
    objects=encode({"best": 1.5}),
    ranks=(encode({"rng": 1}), encode({"rng": 2})),
    place=ReadPosition(7, "c7", 5, 2),
    commit=CommitRef(4, 9),
    goal=20,
    source="train",
    saved=True,
    due="cadence",
    exhausted=True,
    age=1.5,
    alike=("python",),
    sums=([1.0], [2.0]),
    parts=(["a"], ["b"]),
    saves={"number": 3},
    shards={"net.weight": [[0, 1]]},
    mesh=(2, 2),
    options={"net": {"reshard_after_forward": "True"}},
    alone=encode({"rng": 3}),
    all_able=True,
    mirrors=2,
)
PARAMETER, BUFFER = torch.ones(2, 2), torch.tensor(4)


def test_every_field_arrives_as_it_was_sent() -> None:
    defaults = {one.name: one.default for one in fields(Header) if one.default is not MISSING}
    assert [name for name, default in defaults.items() if getattr(HEADER, name) == default] == []
    assert all([HEADER.saves, HEADER.shards, HEADER.options])
    assert Header.read(json.loads(json.dumps(HEADER.write()))) == HEADER


def test_a_rank_that_keeps_its_parameters_takes_rank_0s_buffers_and_objects() -> None:
    found = {(SHARED, "net.weight"): torch.zeros(2, 2), (REPLICATED, "net.count"): BUFFER}
    own = RankState({"net.weight": PARAMETER}, {"net.count": torch.tensor(1)}, {"best": 0.0})
    kept = HEADER.received(found, own)
    assert (kept.shared["net.weight"] is PARAMETER, kept.replicated["net.count"] is BUFFER) == (True, True)
    assert (kept.objects, kept.rank) == ({"best": 1.5}, None)
    taken = HEADER.state(found, {"rng": 1})
    assert (taken.shared["net.weight"] is found[SHARED, "net.weight"], taken.rank) == (True, {"rng": 1})
