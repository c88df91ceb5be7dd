"""Registered objects as a checkpoint's state, and back into newly built objects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from perdure.checkpoint.codec import decode, encode
from perdure.checkpoint.state import RankState
from perdure.errors import UserError
from perdure.state.registry import Registry

OPTIMIZERS: list[tuple[str, Callable[[Any], torch.optim.Optimizer]]] = [
    ("Adam", lambda p: torch.optim.Adam(p, lr=0.01)),
    ("AdamW", lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True)),
    ("NAdam", lambda p: torch.optim.NAdam(p, lr=0.01)),
    ("SGD", lambda p: torch.optim.SGD(p, lr=0.01)),
    ("SGD with dampening", lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, dampening=0.1)),
    ("Adafactor", lambda p: torch.optim.Adafactor(p, lr=0.01)),
    ("LBFGS", lambda p: torch.optim.LBFGS(p, max_iter=2)),
]


ALL_OF_TORCH = sorted(
    name
    for name, kind in vars(torch.optim).items()
    if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
)


class Trained:
    """A model with a buffer, a parameter that gets no gradient, and the other objects to register."""

    def __init__(self, make: Callable[[Any], torch.optim.Optimizer]) -> None:
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
        self.net.register_parameter("unused", nn.Parameter(torch.ones(2)))
        self.optimizer = make(self.net.parameters())
        self.scheduler = torch.optim.lr_scheduler.MultiStepLR(self.optimizer, [2, 4], 0.1)
        self.registry = Registry()
        self.registry.add("net", self.net)
        self.registry.add("optimizer", self.optimizer)
        self.registry.add("scheduler", self.scheduler)

    def step(self) -> None:
        def closure() -> float:
            self.optimizer.zero_grad()
            loss: torch.Tensor = self.net(torch.arange(20.0).reshape(5, 4)).square().mean()
            loss.backward()
            return loss.item()

        self.optimizer.step(closure)
        self.scheduler.step()

    def tensors(self) -> dict[str, list[float]]:
        return {name: tensor.flatten().tolist() for name, tensor in self.net.state_dict().items()}


def stored(state: RankState) -> RankState:
    """As a checkpoint gives it back: copies, and objects through the codec."""
    shared = {name: tensor.clone() for name, tensor in state.shared.items()}
    replicated = {name: tensor.clone() for name, tensor in state.replicated.items()}
    return RankState(shared, replicated, decode(encode(dict(state.objects))))


@pytest.mark.skipif(not hasattr(torch.Tensor, "grad_dtype"), reason="not before torch 2.15")
def test_restored_gradients_of_zeros_have_the_type_that_the_script_has_given_them() -> None:
    registries = [Registry(), Registry()]
    nets = [nn.Linear(2, 2, bias=False, dtype=torch.bfloat16) for _ in registries]
    for registry, net in zip(registries, nets, strict=True):
        net.weight.grad_dtype = torch.float32
        registry.add("net", net)
    nets[0].weight.grad = torch.zeros(2, 2)
    for _ in range(2):
        registries[0].note_gradients()
    registries[1].load(stored(registries[0].state(None)))
    assert nets[1].weight.grad is not None
    assert nets[1].weight.grad.dtype == torch.float32


@pytest.mark.parametrize("make", [make for _, make in OPTIMIZERS], ids=[name for name, _ in OPTIMIZERS])
@pytest.mark.parametrize("steps", [0, 3])
def test_training_goes_on_from_a_checkpoint_as_if_nothing_had_happened(
    make: Callable[[Any], torch.optim.Optimizer], steps: int
) -> None:
    straight, first, second = Trained(make), Trained(make), Trained(make)
    for _ in range(steps):
        first.step()
    second.registry.load(stored(first.registry.state(None)))
    for _ in range(steps):
        straight.step()
    for _ in range(3):
        straight.step()
        second.step()
    assert second.tensors() == straight.tensors()
    assert second.optimizer.param_groups[0]["lr"] == straight.optimizer.param_groups[0]["lr"]


@pytest.mark.parametrize("name", ALL_OF_TORCH)
def test_every_optimizer_of_torch_goes_on_exactly(name: str) -> None:
    straight, first, second = Looked(name), Looked(name), Looked(name)
    before = first.table.weight.tolist()
    first.step()
    first.step()
    second.registry.load(stored(first.registry.state(None)))
    for one in (straight, straight, straight, straight, second, second):
        one.step()
    assert straight.tensors() == second.tensors()
    assert straight.table.weight.tolist() != before


class Looked:
    """A table and a layer with parameters of two dimensions, as Muon wants them; sparse gradients for SparseAdam."""

    def __init__(self, name: str) -> None:
        torch.manual_seed(0)
        sparse = name == "SparseAdam"
        self.table, self.last = nn.Embedding(6, 4, sparse=sparse), nn.Linear(4, 3, bias=False)
        trained = self.table.parameters() if sparse else [*self.table.parameters(), *self.last.parameters()]
        self.optimizer = getattr(torch.optim, name)(trained)
        self.registry = Registry()
        self.registry.add("table", self.table)
        self.registry.add("last", self.last)
        self.registry.add("optimizer", self.optimizer)

    def step(self) -> None:
        def closure() -> float:
            self.table.zero_grad()
            self.last.zero_grad()
            loss: torch.Tensor = self.last(self.table(torch.tensor([0, 1, 3, 3]))).square().mean()
            loss.backward()
            return loss.item()

        self.optimizer.step(closure)

    def tensors(self) -> list[list[float]]:
        return [module.weight.flatten().tolist() for module in (self.table, self.last)]


def test_an_optimizer_without_a_step_is_recorded_as_such_and_is_not_stepped() -> None:
    one = Trained(OPTIMIZERS[0][1])
    hooks: list[int] = []
    one.optimizer.register_step_pre_hook(lambda *_: hooks.append(1))
    assert one.registry.state(None).objects["optimizer"]["state"] is None
    assert hooks == []


def test_a_parameter_that_never_had_a_gradient_has_no_state_and_gets_none() -> None:
    first, second = Trained(OPTIMIZERS[0][1]), Trained(OPTIMIZERS[0][1])
    first.step()
    state = first.registry.state(None)
    assert not any("unused" in name for name in state.shared if name.startswith("optimizer/"))
    second.registry.load(stored(state))
    assert len(second.optimizer.state) == len(first.optimizer.state) == 4


def test_buffers_are_replicated_and_parameters_and_optimizer_state_are_shared_out() -> None:
    one = Trained(OPTIMIZERS[0][1])
    one.step()
    state = one.registry.state(None)
    assert set(state.replicated) == {f"net.1.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")}
    assert {"net.0.weight", "net.unused", "optimizer/net.0.weight/exp_avg"} <= set(state.shared)


def test_parameters_are_known_by_name_and_not_by_their_place_in_a_group() -> None:
    def groups(net: nn.Module, *names: str) -> torch.optim.Optimizer:
        return torch.optim.Adam([net.get_parameter(name) for name in names], lr=0.01)

    nets = [nn.Linear(2, 2) for _ in range(2)]
    registries = [Registry(), Registry()]
    for net, registry in zip(nets, registries, strict=True):
        registry.add("net", net)
    first = groups(nets[0], "weight", "bias")
    registries[0].add("optimizer", first)
    registries[1].add("optimizer", groups(nets[1], "bias", "weight"))
    nets[0](torch.ones(1, 2)).sum().backward()
    first.step()
    with pytest.raises(UserError, match="'optimizer' has other parameters"):
        registries[1].load(stored(registries[0].state(None)))


def test_groups_are_compared_by_what_is_in_them_and_not_by_their_numbers_alone() -> None:
    def grouped(*groups: list[str]) -> Registry:
        net, registry = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), Registry()
        registry.add("net", net)
        registry.add("optimizer", torch.optim.Adam([{"params": [net.get_parameter(n) for n in one]} for one in groups]))
        return registry

    first = grouped(["0.weight", "0.bias"], ["1.weight", "1.bias"])
    other = grouped(["0.weight", "1.bias"], ["1.weight", "0.bias"])
    assert first.kind() != other.kind()
    assert first.kind() == grouped(["0.weight", "0.bias"], ["1.weight", "1.bias"]).kind()
    with pytest.raises(
        UserError, match=r"group 0 had 2 parameters, with net.0.bias at place 1, and has 2, with net.1.b"
    ):
        other.load(stored(first.state(None)))


def test_tied_parameters_come_back_tied() -> None:
    def tied() -> tuple[nn.Sequential, torch.optim.Optimizer, Registry]:
        net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        net[1].weight = net[0].weight
        registry = Registry()
        registry.add("net", net)
        optimizer = torch.optim.Adam(net.parameters())
        registry.add("optimizer", optimizer)
        return net, optimizer, registry

    (net, optimizer, registry), (other, _, others) = tied(), tied()
    net(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    others.load(stored(registry.state(None)))
    mine, first, second = (layer.get_parameter("weight") for layer in (net[0], other[0], other[1]))
    assert torch.equal(first, mine)
    assert first is second


def test_anything_with_a_state_dict_can_be_registered() -> None:
    class Average:
        def __init__(self) -> None:
            self.state: dict[str, Any] = {"mean": torch.zeros(3), "count": 0, "best": (float("inf"), None)}

        def state_dict(self) -> dict[str, Any]:
            return self.state

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.state = state

    first, second, registries = Average(), Average(), [Registry(), Registry()]
    for one, registry in zip((first, second), registries, strict=True):
        registry.add("average", one)
    first.state = {"mean": torch.ones(3), "count": 4, "best": (0.25, 7)}
    state = registries[0].state(None)
    assert set(state.replicated) == {"average.mean"}
    registries[1].load(stored(state))
    assert second.state["mean"].tolist() == [1, 1, 1]
    assert (second.state["count"], second.state["best"]) == (4, (0.25, 7))


def test_a_grad_scaler_keeps_its_scale() -> None:
    first, second = torch.amp.GradScaler("cpu", init_scale=4.0), torch.amp.GradScaler("cpu", init_scale=2.0)
    registries = [Registry(), Registry()]
    registries[0].add("scaler", first)
    registries[1].add("scaler", second)
    registries[1].load(stored(registries[0].state(None)))
    assert second.get_scale() == 4.0


def test_an_optimizer_whose_module_is_not_registered_is_named() -> None:
    registry = Registry()
    registry.add("optimizer", torch.optim.SGD(nn.Linear(2, 2).parameters()))
    with pytest.raises(UserError, match="register the module too"):
        registry.state(None)


def test_another_model_than_in_the_checkpoint_is_named() -> None:
    registries = [Registry(), Registry()]
    registries[0].add("net", nn.Linear(2, 2))
    registries[1].add("net", nn.Linear(2, 3))
    with pytest.raises(UserError, match="does not fit module 'net'"):
        registries[1].load(stored(registries[0].state(None)))


def test_other_names_than_in_the_checkpoint_are_named() -> None:
    registries = [Registry(), Registry()]
    registries[0].add("net", nn.Linear(2, 2))
    registries[1].add("model", nn.Linear(2, 2))
    with pytest.raises(UserError, match=r"\['net'\].*\['model'\]"):
        registries[1].load(stored(registries[0].state(None)))


@pytest.mark.parametrize(("name", "thing"), [("net", 3), ("a.b", nn.Linear(1, 1))])
def test_what_cannot_be_registered_is_refused(name: str, thing: Any) -> None:
    with pytest.raises(UserError, match="register"):
        Registry().add(name, thing)


def test_a_name_is_registered_once() -> None:
    registry = Registry()
    registry.add("net", nn.Linear(1, 1))
    with pytest.raises(UserError, match="its own name"):
        registry.add("net", nn.Linear(1, 1))
