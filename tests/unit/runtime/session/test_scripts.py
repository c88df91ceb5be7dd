"""Scripts as people write them, against the habits of the examples: interrupted and resumed they lose nothing."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from tests.unit.runtime.session.training import Join, Training, entries


def test_a_script_that_catches_the_exit_inside_of_its_epochs_does_not_count_batches_it_never_got(
    join: Join, tmp_path: Path
) -> None:
    def carefree(training: Training, *, stop: int | None = None) -> Training:
        session = training.session
        with contextlib.suppress(SystemExit), session:
            for _ in session.epochs(3):
                try:
                    for inputs, _ in training.batches:
                        session.weighted(training.net(inputs).square().mean()).backward()
                        training.optimizer.step()
                        if session.steps_done == stop:
                            os.kill(os.getpid(), signal.SIGTERM)
                        session.step()
                except BaseException:  # noqa: BLE001, S112 - what scripts do
                    continue
        return training

    carefree(Training(join()), stop=6)
    resumed = carefree(Training(join()))

    assert [entry["step"] for entry in entries(tmp_path) if entry.get("final")] == [7, 15]
    assert resumed.session.steps_done == 15
