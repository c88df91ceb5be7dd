"""The strategy that a script gives its Trainer: Lightning's DDP, on a Session's ranks."""

from __future__ import annotations

from typing import Any

import torch
from lightning.fabric.utilities.seed import reset_seed
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.strategies.strategy import Strategy
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, nn
from torch.utils.data import Dataset

from perdure.adapters.lightning.batches import Batches
from perdure.adapters.lightning.checks import check_share
from perdure.adapters.lightning.driver import SessionDriver
from perdure.adapters.lightning.ranks import SessionEnvironment
from perdure.errors import UserError
from perdure.session.driven import drive
from perdure.session.session import Session


class SessionStrategy(DDPStrategy):
    """DDP with the ranks of a Session, one or many; it saves, leaves and goes on as the Session does.

    `options` go to torch's DistributedDataParallel. The Trainer's `devices` and `num_nodes` count for nothing: how many
    ranks there are is what the Session says.
    """

    strategy_name = "perdure"

    def __init__(self, session: Session, **options: Any) -> None:
        super().__init__(cluster_environment=SessionEnvironment(session), **options)
        self.session = session
        self._driver = SessionDriver(session)
        self._replica: Any = None
        drive(session, "Lightning")

    def loader(
        self, dataset: Dataset[Any], batch_size: int, *, shuffle: bool = True, drop_last: bool = False, **options: Any
    ) -> Batches:
        """What to give the Trainer for training: this rank's share of every *global* batch of `batch_size` samples.

        The arguments are those of `Session.loader`, and so are its errors.
        """
        loader = self.session.loader(dataset, batch_size, shuffle=shuffle, drop_last=drop_last, **options)
        check_share(len(dataset), batch_size, self.session.world, drop_last=drop_last)  # type: ignore[arg-type]
        return Batches(loader, self._driver)

    # Ranks.

    @property
    def root_device(self) -> torch.device:
        """The Session's device, or the CPU where the Trainer says so."""
        devices = self.parallel_devices or [torch.device("cpu")]
        return devices[0] if devices[0].type != self.session.device.type else self.session.device

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        """How Lightning shares out what is evaluated."""
        return {"num_replicas": self.session.world, "rank": self.session.rank}

    def _configure_launcher(self) -> None:
        self._launcher = None  # the ranks are there

    def setup_distributed(self) -> None:
        """They are connected, too."""
        reset_seed()
        self.set_world_ranks()

    # The module.

    def connect(self, model: Any) -> None:
        """Lightning has a module for this strategy."""
        super().connect(model)
        callbacks = model.trainer.callbacks
        if self._driver not in callbacks:
            callbacks.append(self._driver)

    def setup(self, trainer: Any) -> None:
        """Makes what is trained; then all goes on from the newest commit."""
        if trainer.state.fn == TrainerFn.FITTING:
            super().setup(trainer)
            self._driver.begin(trainer)
            self.model = self._replica.inside[0]
            if self.session.world > 1 and not self.lightning_module.automatic_optimization:
                self.model.require_forward_param_sync = (
                    False  # of buffers; DDP's own, which Lightning unsets after a pass
                )
        elif self.session.world > 1:
            super().setup(trainer)
        else:  # DDP's would look for a process group
            Strategy.setup(self, trainer)

    def _setup_model(self, model: nn.Module) -> nn.Module:
        if self.lightning_module.trainer.state.fn != TrainerFn.FITTING:
            return model
        self._replica = self.session.wrap(model, **self._ddp_kwargs)
        return self._replica.inside[0]  # type: ignore[no-any-return]

    def _register_ddp_hooks(self) -> None:
        """The Session sums gradients."""

    def process_dataloader(self, dataloader: object) -> object:
        """A loader that the Trainer is about to use. UserError for one whose position nobody could save."""
        trainer = self.lightning_module.trainer
        if trainer.training and isinstance(dataloader, Batches):
            self._driver.take(dataloader)
        elif trainer.training:
            raise UserError(
                f"the Trainer is to train on a {type(dataloader).__name__}, whose position could not be saved: give "
                f"strategy.loader(dataset, batch_size), with the batch of all ranks together; in a module or "
                f"datamodule that is self.trainer.strategy.loader(…)"
            )
        return super().process_dataloader(dataloader)

    def backward(self, closure_loss: Tensor, optimizer: Any, *args: Any, **kwargs: Any) -> Tensor:
        """Each rank's mean loss counts as its share of the global batch, also where that is uneven."""
        loss: Tensor = super().backward(self.session.weighted(closure_loss), optimizer, *args, **kwargs)
        return loss

    def load_checkpoint(self, checkpoint_path: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """A file of Lightning's own, for an evaluation. UserError in a training: it goes on from the newest commit."""
        if self.lightning_module.trainer.state.fn == TrainerFn.FITTING:
            raise UserError(
                "fit(ckpt_path=...): the Session says where a training goes on: leave it out; to begin with the "
                "weights of a file, load them into the module before fit()"
            )
        found: dict[str, Any] = super().load_checkpoint(checkpoint_path, *args, **kwargs)
        return found
