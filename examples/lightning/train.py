"""Lightning's Trainer on handwritten digits, with a validation each epoch and early stopping: a few lines of Perdure.

python train.py --epochs 20            # here; Ctrl-C saves, the same command goes on
torchrun --nproc-per-node 2 train.py   # two processes
"""

import argparse
import hashlib

import lightning
import torch
from lightning.pytorch.callbacks import EarlyStopping
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import perdure  # perdure
from perdure.adapters.lightning import SessionStrategy  # perdure

TRAINING_SAMPLES = 1536


def digits() -> tuple[TensorDataset, TensorDataset]:
    """1,536 images of 8 x 8 pixels to train with, 261 to validate."""
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(data.target)
    split = TRAINING_SAMPLES
    return TensorDataset(images[:split], labels[:split]), TensorDataset(images[split:], labels[split:])


class Digits(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Dropout(0.25),
            nn.Linear(16 * 4 * 4, 10),
        )

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        images, labels = batch
        loss = cross_entropy(self.net(images), labels)
        self.log("loss", loss, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch: list[Tensor], _: int) -> None:
        images, labels = batch
        right = (self.net(images).argmax(1) == labels).float().mean()
        self.log("accuracy", right, prog_bar=True, sync_dist=True)

    def configure_optimizers(self) -> dict[str, object]:
        optimizer = torch.optim.Adam(self.parameters(), lr=2e-3)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
        return {"optimizer": optimizer, "lr_scheduler": schedule}


def weight_hash(module: nn.Module) -> str:
    found = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        found.update(name.encode() + tensor.numpy().tobytes())
    return found.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=64, help="samples of a batch, over all processes")
    parser.add_argument("--accumulate", type=int, default=1, help="batches of one step")
    args = parser.parse_args()

    torch.manual_seed(0)
    train, validation = digits()
    module = Digits()

    with perdure.Session.from_env() as session:  # perdure
        strategy = SessionStrategy(session)  # perdure
        trainer = lightning.Trainer(
            strategy=strategy,
            accelerator="cpu",
            max_epochs=args.epochs,
            accumulate_grad_batches=args.accumulate,
            callbacks=[EarlyStopping("accuracy", patience=5, mode="max")],
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            logger=False,
        )
        batches = strategy.loader(train, batch_size=args.batch)
        trainer.fit(module, batches, DataLoader(validation, 64))

        print(f"loss {trainer.callback_metrics.get('loss_epoch')}")
        print(f"weights {weight_hash(module)}")


if __name__ == "__main__":
    main()
