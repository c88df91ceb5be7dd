"""The strategy to pass to Lightning's Trainer: DDP on a Session's ranks."""

from __future__ import annotations

from functools import partial
from typing import Any, TypeVar

import torch
from lightning.fabric.utilities.seed import reset_seed
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.strategies.strategy import Strategy
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset

from perdure.adapters.lightning.batches import LightningBatches
from perdure.adapters.lightning.checks import check_share
from perdure.adapters.lightning.driver import SessionDriver
from perdure.adapters.lightning.early import BARRIERS, BROADCASTS, REDUCTIONS, EarlyCollectives
from perdure.adapters.lightning.ranks import SessionEnvironment
from perdure.errors import UserError
from perdure.session.driven import Framework, disregard, drive, need_ranks
from perdure.session.session import Session

T = TypeVar("T")


class SessionStrategy(DDPStrategy):
    """DDP on one or more ranks of a Session, which saves, leaves and resumes the training.

    `options` go to torch's DistributedDataParallel. The Trainer's `devices` and `num_nodes` are ignored: the Session
    knows the number of ranks.
    """

    strategy_name = "perdure"

    def __init__(self, session: Session, **options: Any) -> None:
        super().__init__(cluster_environment=SessionEnvironment(session), **options)
        self.session = session
        self._driver = SessionDriver(session)
        self._replica: Any = None
        self._early = EarlyCollectives(session)
        drive(session, Framework("Lightning", self._driver.obstacle, self._renew, self._early.make_up))

    def loader(
        self, dataset: Dataset[Any], batch_size: int, *, shuffle: bool = True, drop_last: bool = False, **options: Any
    ) -> LightningBatches:
        """The training loader for the Trainer: this rank's share of every *global* batch of `batch_size` samples.

        Arguments and errors are those of `Session.loader`.
        """
        loader = self.session.loader(dataset, batch_size, shuffle=shuffle, drop_last=drop_last, **options)
        check_share(len(dataset), batch_size, self.session.world, drop_last=drop_last)  # type: ignore[arg-type]
        return LightningBatches(loader, self._driver)

    # Ranks.

    @property
    def root_device(self) -> torch.device:
        """The Session's device, or the CPU if the Trainer is set to it."""
        devices = self.parallel_devices or [torch.device("cpu")]
        return devices[0] if devices[0].type != self.session.device.type else self.session.device

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        """The arguments of Lightning's sampler for evaluations."""
        return {"num_replicas": self.session.world, "rank": self.session.rank}

    def _configure_launcher(self) -> None:
        self._launcher = None  # the ranks are started already

    def setup_distributed(self) -> None:
        """The ranks are connected already, unless this process joins a living run."""
        reset_seed()
        self.set_world_ranks()
        need_ranks(self.session)

    def barrier(self, *args: Any, **named: Any) -> None:
        """Wait for all ranks."""
        self._early.made(BARRIERS, partial(super().barrier, *args, **named), None)

    def broadcast(self, obj: T, src: int = 0) -> T:
        """The object of one rank, on all."""
        return self._early.made(BROADCASTS, partial(super().broadcast, obj, src), obj)

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """The reduced tensor of all ranks."""
        return self._early.made(REDUCTIONS, partial(super().reduce, tensor, group, reduce_op), tensor)

    # The module.

    def connect(self, model: Any) -> None:
        """Called with the module before the training; adds the driver to the callbacks."""
        super().connect(model)
        callbacks = model.trainer.callbacks
        if self._driver not in callbacks:
            callbacks.append(self._driver)

    def setup(self, trainer: Any) -> None:
        """Set up what is trained, and restore the newest commit."""
        if trainer.state.fn == TrainerFn.FITTING:
            super().setup(trainer)
            self._driver.begin(trainer)
            self._take_replica()
        elif self.session.world > 1:
            super().setup(trainer)
        else:  # DDP's would look for a process group
            Strategy.setup(self, trainer)

    def _setup_model(self, model: nn.Module) -> nn.Module:
        if self.lightning_module.trainer.state.fn != TrainerFn.FITTING:
            return model
        if any(hasattr(parameter, "placements") for parameter in model.parameters()):  # a DTensor
            raise UserError(
                "the module is sharded (fully_shard, parallelize_module), and with Lightning a Session trains and "
                "saves only modules that every rank holds completely: leave it out of configure_model, or write the "
                "loop yourself, with fully_shard"
            )
        self._replica = self.session.wrap(model, **self._ddp_kwargs)
        return self._replica.inside[0]  # type: ignore[no-any-return]

    def _take_replica(self) -> None:
        """Have Lightning call what the session calls now. Lightning looks at its type, so the wrapper would not do."""
        self.model = self._replica.inside[0]
        if isinstance(self.model, DistributedDataParallel) and not self.lightning_module.automatic_optimization:
            self.model.require_forward_param_sync = False  # of buffers; DDP's own, which Lightning unsets after a pass

    def _renew(self) -> None:
        """The ranks have changed live."""
        self._early.forget()
        self._take_replica()

    def _register_ddp_hooks(self) -> None:
        """Do nothing: the Session sums gradients."""

    def process_dataloader(self, dataloader: object) -> object:
        """Called for each loader of the Trainer. UserError for a training loader whose position cannot be saved."""
        trainer = self.lightning_module.trainer
        if not trainer.training:
            disregard(getattr(dataloader, "sampler", None))  # it has this process's rank, which stays
        if trainer.training and isinstance(dataloader, LightningBatches):
            self._driver.take(dataloader)
        elif trainer.training:
            raise UserError(
                f"the position in a {type(dataloader).__name__} cannot be saved: give the Trainer "
                f"strategy.loader(dataset, batch_size), with the batch size of all ranks together; in a module or "
                f"datamodule self.trainer.strategy.loader(…)"
            )
        return super().process_dataloader(dataloader)

    def backward(self, closure_loss: Tensor, optimizer: Any, *args: Any, **kwargs: Any) -> Tensor:
        """Weight the rank's mean loss by its share of the global batch."""
        loss: Tensor = super().backward(self.session.weighted(closure_loss), optimizer, *args, **kwargs)
        return loss

    def load_checkpoint(self, checkpoint_path: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Load a Lightning checkpoint to evaluate. UserError in a training, which resumes from the newest commit."""
        if self.lightning_module.trainer.state.fn == TrainerFn.FITTING:
            raise UserError(
                "fit(ckpt_path=...): a training resumes from the Session's newest commit: leave it out; to start with "
                "the weights of a file, load them into the module before fit()"
            )
        found: dict[str, Any] = super().load_checkpoint(checkpoint_path, *args, **kwargs)
        return found
