"""What a collect hook gets."""

from __future__ import annotations

import torch
from torch import nn

from perdure.state.collecting import collected
from perdure.state.registry import Registry
from perdure.state.userstate import UserState


class Average:
    """Something with tensors that is no module."""

    def __init__(self) -> None:
        self.mean = torch.ones(2)

    def state_dict(self) -> dict[str, object]:
        return {"mean": self.mean, "count": 3}

    def load_state_dict(self, state: dict[str, object]) -> None: ...


def test_modules_and_other_objects_are_collected_by_name_and_nothing_is_copied() -> None:
    net, average, values = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), Average(), UserState()
    net.add_module("odd/name", nn.Linear(2, 1, bias=False))
    optimizer = torch.optim.Adam(net.parameters())
    net[1](net[0](torch.ones(3, 2))).sum().backward()
    optimizer.step()
    values["best"] = torch.ones(1)
    registry = Registry()
    for name, thing in {"model": net, "optimizer": optimizer, "ema": average, "session": values}.items():
        registry.add(name, thing)
    found = dict(collected(registry.state(None), leave_out="session"))
    assert found.keys() == {f"model.{name}" for name in net.state_dict()} | {"ema.mean"}
    assert not any(tensor.requires_grad for tensor in found.values())
    assert found["model.0.weight"].data_ptr() == net[0].weight.data_ptr()  # type: ignore[operator]
    assert torch.equal(found["ema.mean"], average.mean)


def test_tied_weights_are_collected_under_each_of_their_names() -> None:
    net, registry = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), Registry()
    net[1].weight = net[0].weight
    registry.add("model", net)
    found = dict(collected(registry.state(None), leave_out="session"))
    assert found.keys() == {f"model.{name}" for name in net.state_dict()}
    assert torch.equal(found["model.1.weight"], found["model.0.weight"])


def test_a_tensor_is_read_when_it_is_asked_for() -> None:
    net, registry = nn.Linear(2, 2), Registry()
    registry.add("model", net)
    tensors = collected(registry.state(None), leave_out="session")
    with torch.no_grad():
        net.weight.fill_(7)
    assert next(tensors)[1].unique().tolist() == [7]
