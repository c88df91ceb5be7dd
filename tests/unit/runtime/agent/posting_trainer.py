"""A trainer for test_kubeflow: what a session tells the agent, and beside it transformers' own KubeflowCallback, called
as the Trainer calls it."""

from __future__ import annotations

from typing import Any

from transformers import TrainerState
from transformers.integrations import KubeflowCallback

from perdure.wire.channel import Figures
from tests.unit.runtime.agent.trainer import report, save, tell, train

callback: Any = KubeflowCallback()
state = TrainerState(global_step=5, max_steps=10, epoch=1.0)
train()
report(Figures(progress=0.25, remaining_seconds=30.0, values={"accuracy": 0.75}))
callback.on_train_begin(None, state, None)
callback.on_log(None, state, None, logs={"loss": 0.5, "note": "warm", "grad_norm": float("nan")})
callback.on_train_end(None, state, None)
tell(answered=callback._update_status(progress_percent=0, metrics={"loss": 0.5}, force=True))
save()
