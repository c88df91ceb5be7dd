"""Several tasks in one model: weights of the tasks that are trained themselves, and gradients that are projected."""

import copy
import random

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.data import TensorDataset

import perdure
from tests.recipes.held import Held


def samples() -> TensorDataset:
    inputs = torch.randn(60, 8, generator=torch.Generator().manual_seed(4))
    return TensorDataset(inputs, inputs[:, :3].argmax(1), inputs[:, 3:5].sum(1, keepdim=True))


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(8, 10), nn.ReLU(), nn.Dropout(0.1))
        self.kind, self.size = nn.Linear(10, 3), nn.Linear(10, 1)

    def forward(self, x: Tensor, kind: Tensor, size: Tensor) -> list[Tensor]:
        shared = self.trunk(x)
        return [cross_entropy(self.kind(shared), kind), mse_loss(self.size(shared), size)]


def norms_of(weights: Tensor, losses: Tensor, layer: nn.Linear) -> Tensor:
    each = [torch.autograd.grad(one, layer.weight, retain_graph=True, create_graph=True)[0] for one in weights * losses]
    return torch.stack([gradient.norm() for gradient in each])


def balanced() -> Held:
    """GradNorm: the tasks' weights have an optimizer of their own, and their sum stays the same."""
    torch.manual_seed(5)
    with perdure.Session.from_env() as session:
        model, balance = Shared(), nn.ParameterDict({"weights": torch.ones(2)})
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        balancer = torch.optim.Adam(balance.parameters(), lr=2.5e-2)
        session.register(model=model, balance=balance, optimizer=optimizer, balancer=balancer)
        batches = session.loader(samples(), batch_size=6)
        for _ in session.epochs(2):
            for batch in batches:
                weights, losses = balance["weights"], torch.stack(model(*batch))
                first = torch.tensor(session.state.setdefault("first", losses.tolist()))
                optimizer.zero_grad()
                (weights.detach() @ losses).backward(retain_graph=True)
                norms = norms_of(weights, losses, model.trunk[0])
                pace = losses.detach() / first
                wanted = norms.mean().detach() * (pace / pace.mean()) ** 0.12
                (weights.grad,) = torch.autograd.grad((norms - wanted).abs().sum(), weights)
                optimizer.step()
                balancer.step()
                with torch.no_grad():
                    weights.mul_(2 / weights.sum())
                session.step()
        return {"model": model, "balance": balance, "optimizer": optimizer, "balancer": balancer}


class PCGrad:
    """Around an optimizer: removes of each task's gradient what is against another task's, in a random order."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optim = optimizer

    def step(self) -> None:
        self._optim.step()

    def pc_backward(self, objectives: list[Tensor]) -> None:
        weights = [weight for group in self._optim.param_groups for weight in group["params"]]
        gradients = []
        for objective in objectives:
            self._optim.zero_grad(set_to_none=True)
            objective.backward(retain_graph=True)
            gradients.append(
                torch.cat([(torch.zeros_like(w) if w.grad is None else w.grad).flatten() for w in weights])
            )
        projected = copy.deepcopy(gradients)
        for one in projected:
            random.shuffle(gradients)
            for other in gradients:
                if (along := torch.dot(one, other)) < 0:
                    one.sub_(along * other / other.norm() ** 2)
        merged = torch.stack(projected).mean(0).split([weight.numel() for weight in weights])
        for weight, gradient in zip(weights, merged, strict=True):
            weight.grad = gradient.view_as(weight).clone()


def projected() -> Held:
    """PCGrad, the optimizer in it registered."""
    torch.manual_seed(6)
    random.seed(6)
    with perdure.Session.from_env() as session:
        model = Shared()
        optimizer = PCGrad(torch.optim.Adam(model.parameters(), lr=1e-2, amsgrad=True))
        session.register(model=model, optimizer=optimizer._optim)
        batches = session.loader(samples(), batch_size=6)
        for _ in session.epochs(2):
            for batch in batches:
                optimizer.pc_backward(model(*batch))
                optimizer.step()
                session.step()
        return {"model": model, "optimizer": optimizer._optim}
