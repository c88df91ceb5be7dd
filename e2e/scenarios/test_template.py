"""A template edited to something invalid: its author is informed, and a drain does not stop training."""

from __future__ import annotations

import pytest

from e2e.harness.lab import Lab
from e2e.scenarios.conftest import Train, Undisturbed
from e2e.scenarios.training import Config, nothing_lost

pytestmark = [pytest.mark.cluster, pytest.mark.chaos]

TWO = Config(members=2)


def test_a_drained_training_goes_on_although_its_template_was_made_invalid(
    lab: Lab, train: Train, undisturbed: Undisturbed
) -> None:
    with train(TWO) as training:
        training.trains(steps=12)
        training.breaks_its_template()
        training.shows("TemplateInvalid")
        with lab.drain(training.node(rank=1)) as drain:
            drained = drain.finish()
        training.completes()
    assert drained.status == 0, drained.output
    assert training.verdict() == nothing_lost(undisturbed(TWO))
    assert len(training.runs()) == 2
