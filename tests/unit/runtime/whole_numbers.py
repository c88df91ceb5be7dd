"""A training whose weights are equal to the last bit however its batches are cut: gradients are rounded before a step.

A sum of floats depends on its order by 1e-16 of it. What is rounded here lies on a grid of binary fractions and of
their sixths, and never near the places where rounding jumps.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

SAMPLES = 60
FIELDS = 4


def samples() -> TensorDataset:
    """Small whole numbers, what they sum to, and the sample's number."""
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randint(-2, 3, (SAMPLES, FIELDS), generator=generator).double()
    return TensorDataset(inputs, inputs @ torch.arange(1.0, FIELDS + 1).double(), torch.arange(SAMPLES))


class Weights(nn.Module):
    """A sum of the fields, each with its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.fields = nn.Parameter(torch.zeros(FIELDS, dtype=torch.float64))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs @ self.fields


def losses(found: Tensor, wanted: Tensor) -> Tensor:
    return (found - wanted).square()


def optimizer_of(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=1 / 64, momentum=0.5)


def round_gradients(model: nn.Module) -> None:
    for parameter in model.parameters():
        assert parameter.grad is not None
        grid = math.lcm(16, 12, 10)
        parameter.grad.copy_(torch.floor(parameter.grad * grid + 0.3) / grid)
