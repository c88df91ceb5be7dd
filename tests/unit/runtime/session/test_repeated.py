"""A script that changes restored state above the batch loop of a resumed epoch is warned; one that sets it by the epoch
is not."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest
import torch

from perdure.loop.leaving import Exit
from tests.unit.runtime.session.training import Join, Training

WORDS = "above the batch loop of an epoch that this run resumes"
Part = Callable[["Trained", int], None]


class Trained(Training):
    """With a schedule that only the given parts step."""

    def parts(self, above: Part, within: Part, stop: int | None = None) -> None:
        session, (group,) = self.session, self.optimizer.param_groups
        self.weight = next(self.net.parameters())
        self.group, self.batch_norm = group, torch.nn.BatchNorm1d(4)
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.5)
        session.register(schedule=self.schedule, batch_norm=self.batch_norm)
        with session:
            for epoch in session.epochs(3):
                above(self, epoch)
                for inputs, _ in self.batches:
                    within(self, epoch)
                    self.optimizer.zero_grad()
                    self.net(inputs).square().mean().backward()
                    self.optimizer.step()
                    if stop == session.steps_done + 1:
                        os.kill(os.getpid(), signal.SIGTERM)
                    session.step()


def nothing(_trained: Trained, _epoch: int) -> None: ...


def multiplies_the_rate(trained: Trained, _epoch: int) -> None:
    trained.group["lr"] *= 0.5


def steps_the_schedule(trained: Trained, epoch: int) -> None:
    if epoch:
        trained.schedule.step()


def scales_weights(trained: Trained, _epoch: int) -> None:
    with torch.no_grad():
        trained.weight.mul_(0.5)


def updates_statistics(trained: Trained, _epoch: int) -> None:
    trained.batch_norm(torch.ones(2, 4))


def sets_the_rate_by_the_epoch(trained: Trained, epoch: int) -> None:
    trained.group["lr"] = 0.1 / (epoch + 1)


def sets_the_rate_by_the_step(trained: Trained, _epoch: int) -> None:
    trained.group["lr"] = 0.1 / (trained.session.steps_done + 1)


def evaluates_other_weights(trained: Trained, _epoch: int) -> None:
    kept = trained.weight.detach().clone()
    with torch.no_grad():
        trained.weight.mul_(2)
        trained.weight.copy_(kept)


def told(join: Join, capfd: pytest.CaptureFixture[str], above: Part, within: Part) -> list[str]:
    with pytest.raises(Exit):
        Trained(join()).parts(above, within, stop=7)
    assert WORDS not in capfd.readouterr().err
    Trained(join()).parts(above, within)
    return [line for line in capfd.readouterr().err.splitlines() if WORDS in line]


@pytest.mark.parametrize(
    ("above", "name"),
    [
        (multiplies_the_rate, "optimizer.param_groups[0]['lr'] above"),
        (steps_the_schedule, "optimizer.param_groups[0]['lr'], schedule.last_epoch above"),
        (scales_weights, "net.0.weight above"),
        (updates_statistics, "batch_norm.running_mean, batch_norm.running_var, batch_norm.num_batches_tracked above"),
    ],
)
def test_a_change_that_a_resumed_epoch_makes_again_is_reported_once(
    join: Join, capfd: pytest.CaptureFixture[str], above: Part, name: str
) -> None:
    (line,) = told(join, capfd, above, nothing)
    assert name in line


@pytest.mark.parametrize(
    ("above", "within"),
    [
        (nothing, multiplies_the_rate),
        (sets_the_rate_by_the_epoch, nothing),
        (sets_the_rate_by_the_epoch, sets_the_rate_by_the_step),
        (evaluates_other_weights, nothing),
    ],
)
def test_what_is_as_it_was_restored_where_an_optimizer_steps_by_it_is_not_reported(
    join: Join, capfd: pytest.CaptureFixture[str], above: Part, within: Part
) -> None:
    assert told(join, capfd, above, within) == []
