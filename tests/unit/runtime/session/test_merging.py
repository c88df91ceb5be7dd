"""State that is each rank's own, in one process: what is refused, and what is saved and read."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from perdure.checkpoint.codec import encode
from perdure.errors import UserError
from perdure.session.merging import LIMIT_BYTES
from perdure.session.registry import Registry
from tests.unit.runtime.session.scenarios import Seen, dealt
from tests.unit.runtime.session.training import Join, Training


def registry(seen: Seen, name: str = "seen", merge: Any = dealt) -> Registry:
    found = Registry()
    found.add(name, seen, merge=merge)
    return found


@pytest.mark.parametrize(
    ("things", "merge", "words"),
    [
        ({"net": nn.Linear(1, 1)}, {"net": dealt}, "a Linear is the same on all ranks"),
        ({"optimizer": torch.optim.SGD([nn.Parameter(torch.ones(1))])}, {"optimizer": dealt}, "a SGD is the same"),
        ({"seen": Seen()}, {"other": dealt}, "'other' is not registered by this call"),
        ({"seen": Seen()}, {"seen": 3}, "give a function"),
        ({"seen": Seen()}, dealt, "give the function by the object's name"),
    ],
)
def test_what_cannot_be_merged_is_refused(join: Join, things: dict[str, Any], merge: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        join().register(**things, merge=merge)


def test_a_state_that_is_too_large_is_refused_with_its_size() -> None:
    seen = Seen()
    seen.ids = [0] * (LIMIT_BYTES // 8)
    with pytest.raises(UserError, match=r"'seen' is saved by rank, and has .* KiB on this one: more than 256 KiB"):
        registry(seen).own()


def test_no_other_rank_state_is_among_what_all_share() -> None:
    seen = Seen()
    seen.ids = [1, 2]
    state = registry(seen).state(None)
    assert (dict(state.objects), dict(state.replicated)) == ({"seen": None}, {})


def test_a_function_that_gives_no_dict_is_named() -> None:
    found = registry(Seen(), merge=lambda states, *_: states)
    with pytest.raises(UserError, match=r"merge of 'seen' by .*<lambda>, 1 ranks to 2: it gives a list"):
        found.merged([encode({"seen": {}})], rank=0, world=2)


def test_a_rank_that_has_saved_none_is_told() -> None:
    with pytest.raises(UserError, match="rank 1 has saved no state of 'seen'"):
        registry(Seen()).merged([encode({"seen": {}}), {}], rank=0, world=1)


def test_under_another_name_it_is_merged_by_the_function_of_the_new_one() -> None:
    seen, ids = Seen(), [torch.tensor([rank, 10 + rank]) for rank in range(3)]
    found = registry(seen, "now")
    found.rename({"seen": "now"})
    parts = [encode({"seen": {"ids": one}}) for one in ids]
    own = found.merged(parts, rank=1, world=2, held=["seen"])
    assert own["seen"]["ids"].tolist() == [10, 11, 12]


def test_scripts_of_which_one_merges_are_not_alike() -> None:
    assert registry(Seen()).kind() != registry(Seen(), merge=None).kind()


def test_alone_it_goes_on_where_it_was(join: Join) -> None:
    def begun(session: Any) -> tuple[Training, Seen]:
        training, seen = Training(session), Seen()
        session.register(seen=seen, merge={"seen": dealt})
        session.on("resumed", lambda _: seen.ids.append(-1))
        return training, seen

    training, seen = begun(join())
    seen.ids = [4, 5]
    training.left(stop=3)
    training, seen = begun(join())
    training.run()
    assert seen.ids == [4, 5, -1]
