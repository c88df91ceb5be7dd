"""Trains a small BERT to tell from 64 characters of Python's standard library which module they are of.

python train.py                                    # here; Ctrl-C saves, the same command goes on
torchrun --nproc-per-node 2 train.py               # two processes
kubectl apply -f job.yaml                          # two to four pods
"""

import argparse
import string
import sysconfig
from pathlib import Path

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, EarlyStoppingCallback, TrainingArguments

import perdure  # perdure
from perdure.adapters.hf import Trainer  # perdure

MODULES = ("ast", "calendar", "fractions", "random")
LENGTH = 64


class Pieces(Dataset):
    """Pieces of the modules' text; every fifth is for the evaluation."""

    def __init__(self, test: bool) -> None:
        numbers = {character: number for number, character in enumerate(string.printable)}
        self.pieces = []
        for label, name in enumerate(MODULES):
            text = (Path(sysconfig.get_path("stdlib")) / f"{name}.py").read_text()
            ids = [numbers[character] for character in text if character in numbers]
            pieces = [ids[start : start + LENGTH] for start in range(0, len(ids) - LENGTH, LENGTH)]
            chosen = [piece for number, piece in enumerate(pieces) if (number % 5 == 0) == test]
            self.pieces += [{"input_ids": torch.tensor(piece), "labels": label} for piece in chosen]

    def __len__(self) -> int:
        return len(self.pieces)

    def __getitem__(self, index: int) -> dict:
        return self.pieces[index]


def accuracy(prediction) -> dict[str, float]:
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch", type=int, default=16, help="samples of one batch, over all processes")
    parser.add_argument("--accumulate", type=int, default=2, help="batches of one update")
    parser.add_argument("--export", type=Path, default=Path("export"), help="gets the best model")
    own = parser.parse_args()
    with perdure.Session.from_env() as session:  # perdure
        args = TrainingArguments(
            output_dir="output",
            use_cpu=not torch.cuda.is_available(),
            num_train_epochs=own.epochs,
            gradient_accumulation_steps=own.accumulate,
            learning_rate=3e-3,
            warmup_steps=20,
            lr_scheduler_type="cosine",
            logging_steps=10,
            per_device_eval_batch_size=64,
            eval_strategy="epoch",
            save_strategy="epoch",
            load_best_model_at_end=True,
            metric_for_best_model="accuracy",
            report_to="none",
            disable_tqdm=True,
        )
        size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
        config = BertConfig(vocab_size=len(string.printable), num_labels=len(MODULES), **size)
        torch.manual_seed(args.seed)
        trainer = Trainer(
            session=session,  # perdure
            batch_size=own.batch,
            model=BertForSequenceClassification(config),
            args=args,
            train_dataset=Pieces(test=False),
            eval_dataset=Pieces(test=True),
            compute_metrics=accuracy,
            callbacks=[EarlyStoppingCallback(early_stopping_patience=2)],
        )
        trainer.train()
        print("evaluation", trainer.evaluate())
        trainer.save_model(str(own.export))


if __name__ == "__main__":
    main()
