"""State that is each rank's own, in one process: what is refused, and what is saved and read."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import perdure
from perdure.checkpoint.codec import encode
from perdure.checkpoint.state import RankState
from perdure.errors import UserError
from perdure.session.description import Registered
from perdure.state.merging import LIMIT_BYTES
from perdure.state.registry import Registry
from tests.unit.runtime.session.scenarios import Seen, dealt
from tests.unit.runtime.session.training import Join, Training


def registry(seen: Seen, name: str = "seen", merge: Any = dealt) -> Registry:
    found = Registry()
    found.add(name, seen, merge=merge)
    return found


@pytest.mark.parametrize(
    ("make", "merge", "words"),
    [
        (lambda: nn.Linear(1, 1), {"thing": dealt}, "a Linear is the same on all ranks"),
        (lambda: torch.optim.SGD([nn.Parameter(torch.ones(1))]), {"thing": dealt}, "a SGD is the same on all ranks"),
        (Seen, {"other": dealt}, "'other' is not registered by this call"),
        (Seen, {"thing": 3}, "give a function"),
        (Seen, dealt, "give the function by the object's name"),
    ],
)
def test_what_cannot_be_merged_is_refused(join: Join, make: Callable[[], Any], merge: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        join().register(thing=make(), merge=merge)


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


def test_a_rank_that_has_saved_none_is_reported() -> None:
    with pytest.raises(UserError, match="rank 1 has saved no state of 'seen'"):
        registry(Seen()).merged([encode({"seen": {}}), {}], rank=0, world=1)


def test_under_another_name_it_is_merged_by_the_function_of_the_new_one() -> None:
    seen, ids = Seen(), [torch.tensor([rank, 10 + rank]) for rank in range(3)]
    found = registry(seen, "now")
    found.rename({"seen": "now"})
    parts = [encode({"seen": {"ids": one}}) for one in ids]
    own = found.merged(parts, rank=1, world=2, held=["seen"])
    assert own["seen"]["ids"].tolist() == [10, 11, 12]


def test_under_another_name_a_rank_gets_its_own_back() -> None:
    seen = Seen()
    found = registry(seen, "now")
    found.rename({"seen": "now"})
    own = {"by_rank": {"seen": {"ids": torch.tensor([7, 8])}}}
    found.load(RankState({}, {}, {"seen": None}, own))
    assert seen.ids == [7, 8]


def test_a_checkpoint_without_a_state_of_this_rank_is_refused() -> None:
    with pytest.raises(UserError, match="this rank has saved no state of 'seen': register it with merge= on every"):
        registry(Seen()).load(RankState({}, {}, {"seen": None}, {"rng": {}}))


def test_a_checkpoint_with_a_state_of_each_rank_is_refused_by_what_does_not_merge() -> None:
    with pytest.raises(UserError, match=r"holds a state of 'seen' for each rank: register it with merge={'seen': fn}"):
        registry(Seen(), merge=None).targets({"seen": None}, ())


def test_of_what_rank_0_has_not_saved_by_rank_nothing_is_merged() -> None:
    assert registry(Seen()).merged([{}, encode({"seen": {}})], rank=0, world=1) == {}


def test_what_an_object_refuses_is_named() -> None:
    with pytest.raises(UserError, match=r"'seen': load_state_dict refuses the state of this rank: KeyError\('ids'\)"):
        registry(Seen()).load_own({"seen": {"other": 1}})


def test_a_function_that_draws_leaves_the_generators_where_they_were() -> None:
    def shuffled(states: list[dict[str, Any]], rank: int, _: int) -> dict[str, Any]:
        random.shuffle(states)
        return {"ids": states[rank]["ids"][torch.randperm(3)]}

    now = random.getstate(), torch.get_rng_state()
    registry(Seen(), merge=shuffled).merged([encode({"seen": {"ids": torch.arange(3)}})] * 2, rank=0, world=1)
    assert random.getstate() == now[0]
    assert torch.equal(torch.get_rng_state(), now[1])


def test_scripts_of_which_one_merges_are_not_alike() -> None:
    assert registry(Seen()).kind() != registry(Seen(), merge=None).kind()


def test_describe_says_that_it_is_of_each_rank(join: Join) -> None:
    session = join()
    seen = Seen()
    seen.ids = [1, 2]
    session.register(seen=seen, merge={"seen": dealt})
    assert perdure.describe(session).registered == (Registered("seen", "Seen", 1, 16, by_rank=True),)
    assert "seen  Seen, 1 tensor, 16 B, of each rank\n" in str(perdure.describe(session))


def test_alone_it_goes_on_where_it_was(join: Join, tmp_path: Path) -> None:
    def begun(session: Any) -> tuple[Training, Seen]:
        training, seen = Training(session), Seen()
        session.register(seen=seen, merge={"seen": dealt})
        session.on("resumed", lambda _: seen.ids.append(-1))
        return training, seen

    training, seen = begun(join())
    seen.ids = [4, 5]
    training.left(stop=3)
    assert [commit.step for commit in perdure.history(tmp_path)] == [3]
    ((rank, kept),) = perdure.load(tmp_path)["seen"].items()
    assert (rank, kept["ids"].tolist()) == (0, [4, 5])
    training, seen = begun(join())
    training.run()
    assert seen.ids == [4, 5, -1]
