"""Lets the session wrap the model that accelerate would put into DistributedDataParallel.

The Trainer keeps the wrapped model as an argument of its loops. DistributedDataParallel keeps the ranks that it was
made with; the session's wrapper stays the same object while these change.
"""

from __future__ import annotations

from typing import Any

from accelerate.utils import DistributedType, DynamoBackend

from perdure.session.driven import Replica
from perdure.session.session import Session


def let_session_wrap(trainer: Any, session: Session) -> None:
    """Have the Trainer's accelerator wrap models by the session. A compiled model is accelerate's as usual, which keeps
    the ranks from changing live."""
    accelerator = trainer.accelerator
    kinds = (DistributedType.MULTI_CPU, DistributedType.MULTI_GPU)
    if session.world == 1 or accelerator.distributed_type not in kinds:
        return
    if accelerator.state.dynamo_plugin.backend != DynamoBackend.NO:
        return
    prepare, unwrap = accelerator.prepare_model, accelerator.unwrap_model

    def prepare_model(model: Any, device_placement: bool | None = None, evaluation_mode: bool = False) -> Any:
        prepared = prepare(model, device_placement, True)
        trains = any(parameter.requires_grad for parameter in model.parameters())
        if evaluation_mode or not trains or isinstance(model, Replica):
            return prepared
        handler = accelerator.ddp_handler
        wrapped: Any = session.wrap(prepared, **(handler.to_kwargs() if handler else {}))
        if handler:
            handler.register_comm_hook(wrapped)
        prepared._is_accelerate_prepared, wrapped._is_accelerate_prepared = False, True
        return wrapped

    def unwrap_model(model: Any, *args: Any, **named: Any) -> Any:
        return unwrap(model.module if isinstance(model, Replica) else model, *args, **named)

    accelerator.prepare_model, accelerator.unwrap_model = prepare_model, unwrap_model
