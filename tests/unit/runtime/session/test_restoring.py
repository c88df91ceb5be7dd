"""Registered state returns as it was, straight into the live objects, however they are wrapped; or is refused."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from perdure.checkpoint import manifest, tree
from perdure.checkpoint.load import load
from perdure.checkpoint.state import Loaded
from perdure.errors import UserError
from perdure.group.peers import Solo
from perdure.log.entry import Committed
from perdure.state.registry import Registry
from perdure.store import Store
from tests.support.store import MemoryStore
from tests.unit.runtime.checkpoint.world import opened, position, save


def registry(**things: Any) -> Registry:
    made = Registry()
    for name, thing in things.items():
        made.add(name, thing)
    return made


def saved(before: Registry) -> Store:
    store = MemoryStore()
    save(store, Solo(), opened(store), before.state(None), position(1), run=1)
    return store


def restored(store: Store, after: Registry) -> Loaded:
    loaded = load(store, Solo(), opened(store, None, wait_over=True).commits(), after)
    assert loaded
    after.load(loaded.state)
    return loaded


def items(store: Store) -> set[str]:
    """Names of the tensors in shards."""
    loaded = load(store, Solo(), opened(store, None, wait_over=True).commits())
    assert loaded
    return {*loaded.state.shared, *loaded.state.replicated}


def version(store: Store) -> int:
    """The format of the newest commit's manifest."""
    entry = next(iter(opened(store, None, wait_over=True).commits())).entry
    assert entry
    assert isinstance(entry.event, Committed)
    return int(json.loads(store.get(entry.event.manifest.key))["version"])


class Kept:
    """Anything with a state."""

    def __init__(self, state: dict[str, Any]) -> None:
        self.state = state

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


class Masters(torch.optim.Optimizer):
    """Keeps fp32 masters of its bf16 weights, as mixed-precision optimizers do."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 1.0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # noqa: ARG002
        for parameter in self.param_groups[0]["params"]:
            master = self.state[parameter].setdefault("master", parameter.float())
            master += 0.001
            self.state[parameter]["seen"] = {"squares": [master.double(), "a word"]}
            parameter.copy_(master)


def test_fp32_masters_of_bf16_weights_come_back_in_fp32() -> None:
    nets = [nn.Linear(2, 2, dtype=torch.bfloat16) for _ in range(2)]
    for net in nets:
        nn.init.ones_(net.weight)
    optimizers = [Masters(net.parameters()) for net in nets]
    optimizers[0].step()
    restored(saved(registry(net=nets[0], optimizer=optimizers[0])), registry(net=nets[1], optimizer=optimizers[1]))
    state = optimizers[1].state[nets[1].weight]
    assert (state["master"].dtype, state["master"][0, 0].item()) == (torch.float32, pytest.approx(1.001, abs=1e-7))
    assert (state["seen"]["squares"][0].dtype, state["seen"]["squares"][1]) == (torch.float64, "a word")


def test_an_optimizer_that_does_not_keep_what_it_is_given_is_reported() -> None:
    class Forgetful(Masters):
        def load_state_dict(self, state_dict: Any) -> None:
            super().load_state_dict({**state_dict, "state": {}})

    nets = [nn.Linear(2, 2) for _ in range(2)]
    first = Forgetful(nets[0].parameters())
    first.step()
    with pytest.raises(
        UserError, match=r"does not keep its state as it was saved: master was float32 \[2, 2\] and is mis"
    ):
        restored(
            saved(registry(net=nets[0], optimizer=first)),
            registry(net=nets[1], optimizer=Forgetful(nets[1].parameters())),
        )


def test_tensors_at_any_depth_of_a_state_are_in_shards_and_come_back_where_they_were() -> None:
    weight = torch.arange(3.0)
    deep = {"shadow": OrderedDict(w=weight), "history": [(torch.ones(2), {7: torch.zeros(1)})], "again": weight, "n": 3}
    store = saved(registry(average=Kept(deep)))
    assert items(store) == {"average.shadow.w", "average.history.0.0", "average.history.0.1.7"}
    after = Kept({})
    restored(store, registry(average=after))
    found = after.state
    assert (type(found["shadow"]), type(found["history"][0]), found["n"]) == (OrderedDict, tuple, 3)
    assert torch.equal(found["shadow"]["w"], weight)
    assert found["again"] is found["shadow"]["w"]
    assert torch.equal(found["history"][0][1][7], torch.zeros(1))


ARRAYS = {
    "float64": np.arange(300.0),
    "bool": np.arange(2000) % 3 == 0,
    "uint16": np.arange(900, dtype=np.uint16).reshape(30, 30),
    "complex": np.full((10, 20), 1 + 2j),
    "long double": np.arange(90, dtype=np.longdouble) / 3,
    "another byte order": np.arange(300, dtype=">f4"),
    "columns first": np.asfortranarray(np.arange(600.0).reshape(20, 30)),
    "backwards": np.arange(300.0)[::-1],
    "read only": np.broadcast_to(np.arange(30.0), (20, 30)),
}


@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
def test_a_large_array_is_in_a_shard_and_comes_back_as_it_was(array: Any) -> None:
    store, after = saved(registry(kept=Kept({"deep": [{"history": array}]}))), Kept({})
    assert items(store) == {"kept.deep.0.history"}
    restored(store, registry(kept=after))
    found = after.state["deep"][0]["history"]
    assert (type(found), found.dtype, found.shape) == (np.ndarray, array.dtype, array.shape)
    assert found.tolist() == array.tolist()
    found[0] = 0  # it is the script's own


def test_a_small_array_stays_in_the_manifest() -> None:
    store, after = saved(registry(kept=Kept({"history": np.arange(9.0)}))), Kept({})
    assert items(store) == set()
    assert version(store) == 1
    restored(store, registry(kept=after))
    assert after.state["history"].tolist() == list(range(9))


def test_an_array_that_is_met_twice_is_stored_once() -> None:
    array = np.zeros(500)
    store, after = saved(registry(kept=Kept({"a": array, "b": array}))), Kept({})
    assert items(store) == {"kept.a"}
    restored(store, registry(kept=after))
    after.state["a"][3] = 7.0
    assert after.state["b"][3] == 7.0


def test_an_array_in_a_modules_own_state_comes_back() -> None:
    class Counting(nn.Linear):
        seen = np.zeros(200)

        def get_extra_state(self) -> Any:
            return {"seen": self.seen}

        def set_extra_state(self, state: Any) -> None:
            self.seen = state["seen"]

    nets = [Counting(2, 2) for _ in range(2)]
    nets[0].seen = np.arange(200.0)
    restored(saved(registry(net=nets[0])), registry(net=nets[1]))
    assert nets[1].seen.tolist() == list(range(200))


def test_an_array_that_an_older_version_has_left_in_the_manifest_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "ARRAY_BYTES", 1 << 30)
    store, after = saved(registry(kept=Kept({"history": np.arange(500.0)}))), Kept({})
    assert (items(store), version(store)) == (set(), 1)
    restored(store, registry(kept=after))
    assert after.state["history"].tolist() == list(range(500))


@pytest.mark.parametrize(("what", "since"), [("array", 2), ("tied", 2), ("by-rank", 3)])
def test_a_version_that_knows_less_is_told_to_make_way_for_a_newer_one(
    what: str, since: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would pass over the commit as damaged, and go on from an older one."""
    before = Registry()
    match what:
        case "array":
            before.add("kept", Kept({"history": np.zeros(500)}))
        case "tied":
            before.add("net", Tied())
        case _:
            before.add("kept", Kept({}), merge=lambda states, *_: states[0])
    store = saved(before)
    assert version(store) == since
    monkeypatch.setattr(manifest, "FORMAT", since - 1)
    with pytest.raises(UserError, match=f"has version {since}, this Perdure knows {since - 1}: use a newer Perdure"):
        restored(store, registry(kept=Kept({})))


class Tied(nn.Module):
    """Embeds and projects by the same weights, if they are tied."""

    def __init__(self, *, tied: bool = True, size: int = 4) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(size, 3), nn.Linear(3, size, bias=False)
        if tied:
            self.head.weight = self.embedding.weight


@pytest.mark.parametrize("tied", [True, False])
def test_tied_weights_are_stored_once_and_fit_a_module_that_ties_them_or_not(tied: bool) -> None:
    first, second = Tied(), Tied(tied=tied)
    store = saved(registry(net=first))
    assert items(store) == {"net.embedding.weight"}
    restored(store, registry(net=second))
    assert torch.equal(second.embedding.weight, first.embedding.weight)
    assert torch.equal(second.head.weight, first.embedding.weight)
    assert (second.head.weight is second.embedding.weight) is tied


def test_what_a_module_gives_under_a_further_name_of_a_weight_is_stored_if_it_is_something_else() -> None:
    class Rounded(Tied):
        def state_dict(self, *args: Any, **options: Any) -> Any:
            found = super().state_dict(*args, **options)
            found["head.weight"] = found["head.weight"].round()
            return found

    assert items(saved(registry(net=Rounded()))) == {"net.embedding.weight", "net.head.weight"}


def test_weights_that_were_stored_under_each_name_fit_a_module_that_ties_them() -> None:
    first, second = Tied(tied=False), Tied()
    first.head.weight = nn.Parameter(first.embedding.weight.detach().clone())
    store = saved(registry(net=first))
    assert (items(store), version(store)) == ({"net.embedding.weight", "net.head.weight"}, 1)
    restored(store, registry(net=second))
    assert torch.equal(second.embedding.weight, first.embedding.weight)


def test_a_tied_weight_that_the_module_does_not_have_or_has_in_another_shape_is_reported() -> None:
    store = saved(registry(net=Tied()))
    other = Tied(tied=False)
    other.head = nn.Linear(3, 5, bias=False)
    with pytest.raises(UserError, match=r"net.head.weight is float32 \[4, 3\] in the .*float32 \[5, 3\] in the module"):
        restored(store, registry(net=other))
    del other.head
    with pytest.raises(UserError, match=r"it holds net.head.weight, which the module does not have"):
        restored(store, registry(net=other))


def test_names_that_look_alike_are_kept_apart() -> None:
    store = saved(registry(odd=Kept({"a.b": torch.zeros(1), "a": {"b": torch.ones(1)}})))
    after = Kept({})
    restored(store, registry(odd=after))
    assert (after.state["a.b"].item(), after.state["a"]["b"].item()) == (0.0, 1.0)


def test_the_history_of_lbfgs_is_in_shards() -> None:
    nets = [nn.Linear(3, 1) for _ in range(2)]
    optimizers = [torch.optim.LBFGS(net.parameters(), max_iter=3) for net in nets]

    def step(net: nn.Linear, optimizer: torch.optim.LBFGS) -> None:
        def closure() -> float:
            optimizer.zero_grad()
            loss: Tensor = (net(torch.eye(3)) - torch.arange(3.0).unsqueeze(1)).square().mean()
            loss.backward()
            return loss.item()

        optimizer.step(closure)

    step(nets[0], optimizers[0])
    store = saved(registry(net=nets[0], optimizer=optimizers[0]))
    assert {"optimizer/net.weight/d", "optimizer/net.weight/old_dirs.0"} <= items(store)
    restored(store, registry(net=nets[1], optimizer=optimizers[1]))
    for net, optimizer in zip(nets, optimizers, strict=True):
        step(net, optimizer)
    assert torch.equal(nets[0].weight, nets[1].weight)


class Outer(nn.Module):
    """A model with a wrapped part in it, and a part of its own that is called module."""

    def __init__(self, wrap: Callable[[nn.Module], nn.Module]) -> None:
        super().__init__()
        self.part = wrap(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
        self.module = nn.Linear(2, 2)


def compiled(module: nn.Module) -> nn.Module:
    found = torch.compile(module)
    assert isinstance(found, nn.Module)
    return found


WRAPS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "plain": lambda module: module,
    "compiled": compiled,
    "parallel": nn.DataParallel,
    "both": lambda module: nn.DataParallel(compiled(module)),
}


@pytest.mark.parametrize("outside", WRAPS)
@pytest.mark.parametrize("inside", WRAPS)
def test_names_do_not_depend_on_wrappers_at_any_depth(outside: str, inside: str) -> None:
    def made(out: str, within: str) -> tuple[nn.Module, torch.optim.Optimizer, Registry]:
        net = WRAPS[out](Outer(WRAPS[within]))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        return net, optimizer, registry(net=net, optimizer=optimizer)

    net, optimizer, before = made(outside, inside)
    for parameter in net.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    store = saved(before)
    assert {"net.part.0.weight", "net.module.weight", "optimizer/net.part.0.weight/momentum_buffer"} <= items(store)
    other, others, after = made("plain", "plain")
    restored(store, after)
    for mine, theirs in zip(net.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs)
        assert torch.equal(optimizer.state[mine]["momentum_buffer"], others.state[theirs]["momentum_buffer"])


def test_an_average_that_is_kept_under_wrapped_names_fits_an_unwrapped_model() -> None:
    before = Kept({"shadow": {"module.fc._orig_mod.weight": torch.ones(2), "module.fc.bias": torch.zeros(1)}})
    after = Kept({"shadow": {"fc.weight": torch.zeros(2), "fc.bias": torch.ones(1)}})
    restored(saved(registry(average=before)), registry(average=after))
    assert {name: value.tolist() for name, value in after.state["shadow"].items()} == {
        "fc.weight": [1.0, 1.0],
        "fc.bias": [0.0],
    }


def test_live_tensors_are_read_into_where_they_lie() -> None:
    nets = [nn.Linear(3, 3) for _ in range(2)]
    shadow = torch.zeros(3)
    place = [nets[1].weight.data_ptr(), shadow.data_ptr()]
    after = Kept({"shadow": {"w": shadow}})
    store = saved(registry(net=nets[0], average=Kept({"shadow": {"w": torch.ones(3)}})))
    restored(store, registry(net=nets[1], average=after))
    assert [nets[1].weight.data_ptr(), after.state["shadow"]["w"].data_ptr()] == place
    assert torch.equal(nets[1].weight, nets[0].weight)
    assert torch.equal(shadow, torch.ones(3))


def test_an_average_that_still_shares_the_models_memory_does_not_spoil_the_model() -> None:
    nets = [nn.Linear(3, 3) for _ in range(2)]
    after = Kept({"shadow": nets[1].weight.detach()})
    store = saved(registry(net=nets[0], average=Kept({"shadow": torch.full((3, 3), 9.0)})))
    restored(store, registry(net=nets[1], average=after))
    assert torch.equal(nets[1].weight, nets[0].weight)
    assert after.state["shadow"][0, 0].item() == 9.0


class Growing(nn.Module):
    """Remembers its inputs in a buffer, and has one that appears only later."""

    def __init__(self, room: int = 0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.seen: Tensor
        self.late: Tensor | None
        self.register_buffer("seen", torch.zeros(room))
        self.register_buffer("late", None)

    def see(self) -> None:
        self.seen = torch.cat([self.seen, torch.ones(2)])
        self.late = torch.full((3,), 5.0)


def test_a_buffer_that_has_grown_comes_back_in_its_own_shape_more_than_once() -> None:
    first, second, third = (Growing() for _ in range(3))
    before = registry(net=first)
    first.see()
    after = registry(net=second)
    restored(saved(before), after)
    assert second.late is not None
    assert (second.seen.tolist(), second.late.tolist()) == ([1.0, 1.0], [5.0, 5.0, 5.0])
    second.see()
    restored(saved(after), registry(net=third))
    assert third.seen.tolist() == [1.0] * 4


def test_a_buffer_of_another_shape_that_has_not_grown_is_refused() -> None:
    with pytest.raises(UserError, match=r"net.seen is float32 \[4\] in the checkpoint and float32 \[2\] in the module"):
        restored(saved(registry(net=Growing(4))), registry(net=Growing(2)))


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (nn.Linear(2, 3), r"net\.weight is float32 \[2, 2\] in the checkpoint and float32 \[3, 2\] in the module"),
        (
            nn.Linear(2, 2).half(),
            r"net\.weight is float32 \[2, 2\] in the checkpoint and float16 \[2, 2\] in the module",
        ),
        (
            nn.Linear(2, 2, bias=False),
            "it holds net.bias, which the module does not have: build the model it was saved",
        ),
        (nn.Bilinear(2, 2, 2), r"net\.weight is float32 \[2, 2\]"),
        (
            nn.Sequential(nn.Linear(2, 2)),
            r"it holds net.bias, net.weight, which the module does not have, and not net.0.bias, net.0.weight, which "
            r"it has: .* register\(rename=",
        ),
    ],
    ids=["shape", "dtype", "less", "another", "deeper"],
)
def test_another_module_than_was_saved_is_refused_by_name_expected_and_found(other: nn.Module, why: str) -> None:
    with pytest.raises(UserError, match=f"does not fit module 'net': {why}"):
        restored(saved(registry(net=nn.Linear(2, 2))), registry(net=other))


def test_other_parameters_of_an_optimizer_are_named() -> None:
    net, other = nn.Linear(2, 2), nn.Linear(2, 2)
    before = registry(net=net, optimizer=torch.optim.SGD([net.weight, net.bias]))
    after = registry(net=other, optimizer=torch.optim.SGD([other.bias, other.weight]))
    with pytest.raises(
        UserError, match=r"group 0 had 2 parameters, with net\.weight at place 0, and has 2, with net\.bias"
    ):
        restored(saved(before), after)


class Expanded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones(1).expand(4))


ODD: dict[str, tuple[Callable[[], Any], str]] = {
    "expanded": (Expanded, r"tensor odd\.mask has elements that share memory .* register a copy"),
    "lazy": (lambda: nn.LazyLinear(2), r"tensor odd\.weight has no shape yet: run the model once"),
    "meta": (lambda: nn.Linear(2, 2, device="meta"), r"tensor odd\.weight is on the meta device .* materialize"),
    "sparse": (
        lambda: Kept({"s": {"t": torch.ones(2).to_sparse()}}),
        r"tensor odd\.s\.t is sparse_coo: .* keep it dense",
    ),
    "object": (
        lambda: Kept({"f": [print]}),
        r"objects\['odd'\]\['f'\]\[0\] is a builtins.* give a state_dict of numbers",
    ),
}


@pytest.mark.parametrize("what", ODD)
def test_what_cannot_be_saved_or_loaded_again_is_refused_with_path_and_remedy(what: str) -> None:
    make, why = ODD[what]
    with pytest.raises(UserError, match=why):
        saved(registry(odd=make()))


class Head(nn.Module):
    """A body, and a last layer under a name that changes; `more` was not there before."""

    def __init__(self, name: str, *, more: bool = False) -> None:
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.add_module(name, nn.Linear(4, 2))
        if more:
            self.more = nn.Linear(4, 3)
            self.register_buffer("seen", torch.full((2,), 7.0))

    def trained(self, value: float) -> Head:
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.fill_(value)
        return self


def stepped(net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    torch.stack([parameter.sum() for parameter in net.parameters()]).sum().backward()
    optimizer.step()


def adam(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(net.parameters(), lr=0.5)


def test_what_a_checkpoint_does_not_hold_is_kept_where_that_is_said_and_refused_else() -> None:
    old, new = Head("head").trained(1.0), Head("head", more=True).trained(2.0)
    optimizers = adam(old), adam(new)
    stepped(old, optimizers[0])
    store = saved(registry(net=old, optimizer=optimizers[0]))
    average = Kept({"shadow": torch.ones(3)})
    with pytest.raises(UserError, match=r"registered are \['average', 'net', 'optimizer'\]: .*absent='keep'"):
        restored(store, registry(net=new, optimizer=optimizers[1], average=average))
    with pytest.raises(UserError, match=r"it does not hold net\.more\.bias, net\.more\.weight, net\.seen, which"):
        restored(store, registry(net=new, optimizer=optimizers[1]))
    after = Registry()
    for name, thing in {"net": new, "optimizer": optimizers[1], "average": average}.items():
        after.add(name, thing, keeps=True)
    restored(store, after)
    assert after.kept == ["average", "net.seen", "net.more.weight", "net.more.bias"]
    assert torch.equal(new.body.weight, old.body.weight)
    assert (new.more.weight.unique().tolist(), new.seen.unique().tolist()) == ([2.0], [7.0])  # type: ignore[operator]
    assert average.state["shadow"].tolist() == [1, 1, 1]
    state = optimizers[1].state
    assert torch.equal(state[new.body.weight]["exp_avg"], optimizers[0].state[old.body.weight]["exp_avg"])
    assert new.more.weight not in state
    stepped(new, optimizers[1])


def test_an_optimizer_with_other_groups_is_refused_also_if_it_may_have_more_parameters() -> None:
    old, new = Head("head"), Head("head", more=True)
    store = saved(registry(net=old, optimizer=adam(old)))
    parts: list[Any] = [
        list(new.body.parameters()),
        [one for name, one in new.named_parameters() if not name.startswith("body")],
    ]
    after = Registry()
    after.add("net", new, keeps=True)
    after.add("optimizer", torch.optim.Adam([{"params": part} for part in parts]), keeps=True)
    with pytest.raises(UserError, match="other parameters or parameter groups"):
        restored(store, after)


def test_what_is_called_otherwise_now_is_restored_with_its_optimizers_state() -> None:
    old, new = Head("fc").trained(1.0), Head("head").trained(2.0)
    optimizers = adam(old), adam(new)
    stepped(old, optimizers[0])
    store = saved(registry(net=old, adam=optimizers[0], ema=Kept({"shadow": {"w": torch.ones(900)}})))
    average = Kept({})
    for _ in range(2):  # a checkpoint that has the new names is read as it is
        after = registry(model=new, optimizer=optimizers[1], average=average)
        after.rename({"net": "model", "net.fc": "model.head", "adam": "optimizer", "ema": "average"})
        restored(store, after)
        assert torch.equal(new.state_dict()["head.weight"], old.state_dict()["fc.weight"])
        assert average.state["shadow"]["w"].sum() == 900
        for (_, was), (_, now) in zip(old.named_parameters(), new.named_parameters(), strict=True):
            assert torch.equal(was, now)
            assert torch.equal(optimizers[0].state[was]["exp_avg"], optimizers[1].state[now]["exp_avg"])
        store = saved(after)
        with torch.no_grad():
            new.state_dict()["head.weight"].zero_()


def test_tied_weights_and_what_a_module_keeps_beside_tensors_follow_a_new_name() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(3, 3), nn.Linear(3, 3)
            self.two.weight = self.one.weight
            self.words: Any = {"mask": torch.zeros(2)}

        def get_extra_state(self) -> Any:
            return self.words

        def set_extra_state(self, state: Any) -> None:
            self.words = state

    old, new = Net(), Net()
    old.words = {"mask": torch.ones(2), "n": 3}
    after = registry(model=new)
    after.rename({"net": "model"})
    restored(saved(registry(net=old)), after)
    assert torch.equal(new.two.weight, old.one.weight)
    assert new.two.weight is new.one.weight
    assert (new.words["mask"].tolist(), new.words["n"]) == ([1, 1], 3)


@pytest.mark.parametrize("names", [{"a b": "c"}, {"a": ""}, {"a": 3}, {"a.": "b"}])
def test_what_is_no_name_is_refused(names: Any) -> None:
    with pytest.raises(UserError, match=r"register\(rename=.*give names of registered objects, or of parts"):
        Registry().rename(names)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ({"one": "two", "two": "one"}, "'one' is to be 'two', and that 'one', and the checkpoint has both"),
        ({"one": "three", "two": "three"}, "'one' and 'two' are to be 'three', and the checkpoint has both"),
    ],
)
def test_names_that_say_two_things_of_one_checkpoint_are_refused(names: Any, words: str) -> None:
    after = registry(**{name: Head("head") for name in dict.fromkeys(names.values())})
    after.rename(names)
    with pytest.raises(UserError, match=words):
        restored(saved(registry(one=Head("head"), two=Head("head"))), after)


def test_one_name_cannot_become_two() -> None:
    after = Registry()
    after.rename({"net": "model"})
    after.rename({"net": "model"})
    with pytest.raises(UserError, match="'net' is to be 'model' and 'other': keep one"):
        after.rename({"net": "other"})
