"""Recipes of the pages of transformers and Lightning, by the adapters: classifiers, language models, a loop by hand."""

from typing import Any

import lightning
import torch
from accelerate import Accelerator
from lightning.pytorch.callbacks import BaseFinetuning, EarlyStopping
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy, cross_entropy, mse_loss
from torch.utils.data import DataLoader, Dataset, TensorDataset
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    DataCollatorForLanguageModeling,
    EarlyStoppingCallback,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    TrainingArguments,
)

import perdure
from perdure.adapters.hf import Trainer
from perdure.adapters.lightning import SessionStrategy
from tests.recipes.held import Held

WORDS = 30
SMALL = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


# transformers


class Texts(Dataset[dict[str, Any]]):
    """Sentences of ten words, and of which kind each is."""

    def __init__(self, count: int, seed: int, labelled: bool) -> None:
        self.words = torch.randint(3, WORDS, (count, 10), generator=torch.Generator().manual_seed(seed))
        self.labelled = labelled

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, number: int) -> dict[str, Any]:
        words = self.words[number]
        return {"input_ids": words, **({"labels": int(words.sum()) % 2} if self.labelled else {})}


def tokenizer() -> Any:
    """Of words that are numbers already."""
    from tokenizers import Tokenizer, models

    words = {"[PAD]": 0, "[UNK]": 1, "[MASK]": 2, **{f"w{number}": number for number in range(3, WORDS)}}
    named = {"pad_token": "[PAD]", "unk_token": "[UNK]", "mask_token": "[MASK]"}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words, "[UNK]")), **named)


def arguments(**options: Any) -> TrainingArguments:
    quiet = {"use_cpu": True, "report_to": "none", "disable_tqdm": True, "logging_steps": 3}
    return TrainingArguments(output_dir="output", num_train_epochs=3, learning_rate=5e-3, **quiet, **options)


def accuracy(prediction: Any) -> dict[str, float]:
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def fitted(trainer: Any) -> Held:
    trainer.train()
    told = [
        {name: value for name, value in entry.items() if not name.endswith(("runtime", "per_second"))}
        for entry in trainer.state.log_history
    ]
    return {"model": trainer.model, "optimizer": trainer.optimizer, "told": told}


def sequence_classification() -> Held:
    """Text classification: an evaluation each epoch, early stopping, and the best model at the end."""
    with perdure.Session.from_env() as session:
        best = {"load_best_model_at_end": True, "metric_for_best_model": "accuracy"}
        args = arguments(eval_strategy="epoch", save_strategy="epoch", weight_decay=0.01, **best)
        torch.manual_seed(args.seed)
        return fitted(
            Trainer(
                session=session,
                batch_size=8,
                model=BertForSequenceClassification(BertConfig(vocab_size=WORDS, num_labels=2, **SMALL)),
                args=args,
                train_dataset=Texts(40, 1, labelled=True),
                eval_dataset=Texts(16, 2, labelled=True),
                compute_metrics=accuracy,
                callbacks=[EarlyStoppingCallback(early_stopping_patience=2)],
            )
        )


def causal_language_model() -> Held:
    """Causal language modelling: accumulated batches, and a cosine with a warm-up."""
    with perdure.Session.from_env() as session:
        args = arguments(gradient_accumulation_steps=2, lr_scheduler_type="cosine", warmup_steps=4)
        torch.manual_seed(args.seed)
        return fitted(
            Trainer(
                session=session,
                batch_size=4,
                model=GPT2LMHeadModel(GPT2Config(vocab_size=WORDS, n_positions=16, n_embd=8, n_layer=1, n_head=2)),
                args=args,
                train_dataset=Texts(40, 3, labelled=False),
                data_collator=DataCollatorForLanguageModeling(tokenizer(), mlm=False),
            )
        )


def masked_language_model() -> Held:
    """Masked language modelling: the collator draws the words to hide, newly in each epoch."""
    with perdure.Session.from_env() as session:
        args = arguments()
        torch.manual_seed(args.seed)
        return fitted(
            Trainer(
                session=session,
                batch_size=8,
                model=BertForMaskedLM(BertConfig(vocab_size=WORDS, **SMALL)),
                args=args,
                train_dataset=Texts(40, 4, labelled=False),
                data_collator=DataCollatorForLanguageModeling(tokenizer(), mlm_probability=0.3),
            )
        )


# Lightning


def points(count: int, seed: int) -> TensorDataset:
    points = torch.randn(count, 6, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(points, (points.sum(1) > 0).long())


def fit(module: lightning.LightningModule, *, batch_size: int = 8, validated: bool = False, **options: Any) -> Held:
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    with perdure.Session.from_env() as session:
        strategy = SessionStrategy(session, find_unused_parameters=True)
        trainer = lightning.Trainer(strategy=strategy, accelerator="cpu", **quiet, **options)
        validation = DataLoader(points(16, 6), 8) if validated else None
        trainer.fit(module, strategy.loader(points(40, 5), batch_size=batch_size), validation)
        optimizers = {f"optimizer {number}": one for number, one in enumerate(trainer.optimizers)}
        return {"model": module, "metrics": dict(trainer.callback_metrics), **optimizers}


class LitAutoEncoder(lightning.LightningModule):
    """Lightning in 15 minutes."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2))
        self.decoder = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 6))

    def loss(self, batch: list[Tensor]) -> Tensor:
        return mse_loss(self.decoder(self.encoder(batch[0] + 0.1 * torch.randn_like(batch[0]))), batch[0])

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        loss = self.loss(batch)
        self.log("train_loss", loss, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch: list[Tensor], _: int) -> None:
        self.log("val_loss", self.loss(batch), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def autoencoder() -> Held:
    """The first page's: accumulated batches, clipped gradients, a validation each epoch, early stopping."""
    torch.manual_seed(1)
    stops = EarlyStopping("val_loss", patience=2)
    options = {"max_epochs": 4, "accumulate_grad_batches": 2, "gradient_clip_val": 0.5}
    return fit(LitAutoEncoder(), batch_size=4, validated=True, callbacks=[stops], **options)


class GAN(lightning.LightningModule):
    """Two networks, whose steps are made by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.generator = nn.Sequential(nn.Linear(3, 8), nn.LeakyReLU(0.2), nn.Linear(8, 6))
        self.discriminator = nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1), nn.Sigmoid())

    def training_step(self, batch: list[Tensor], _: int) -> None:
        of_generator, of_discriminator = self.optimizers()
        real = batch[0]
        noise = torch.randn(len(real), 3)
        ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
        self.toggle_optimizer(of_generator)
        loss = binary_cross_entropy(self.discriminator(self.generator(noise)), ones)
        self.manual_backward(loss)
        of_generator.step()
        of_generator.zero_grad()
        self.untoggle_optimizer(of_generator)
        self.toggle_optimizer(of_discriminator)
        fake = binary_cross_entropy(self.discriminator(self.generator(noise).detach()), zeros)
        self.manual_backward((binary_cross_entropy(self.discriminator(real), ones) + fake) / 2)
        of_discriminator.step()
        of_discriminator.zero_grad()
        self.untoggle_optimizer(of_discriminator)

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        networks = (self.generator, self.discriminator)
        return [torch.optim.Adam(one.parameters(), lr=2e-3, betas=(0.5, 0.999)) for one in networks]


def manual_optimization() -> Held:
    """A GAN, by manual optimization with two optimizers."""
    torch.manual_seed(2)
    return fit(GAN(), max_epochs=3)


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.feature_extractor = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU())
        self.head = nn.Sequential(nn.Dropout(0.2), nn.Linear(8, 2))

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        return cross_entropy(self.head(self.feature_extractor(batch[0])), batch[1])

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(filter(lambda one: one.requires_grad, self.parameters()), lr=0.1, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7)]


class FeatureExtractorFreezeUnfreeze(BaseFinetuning):
    """As its page has it: the extractor is thawed in the second epoch."""

    def freeze_before_training(self, pl_module: Any) -> None:
        self.freeze(pl_module.feature_extractor)

    def finetune_function(self, pl_module: Any, epoch: int, optimizer: Any) -> None:
        if epoch == 1:
            self.unfreeze_and_add_param_group(pl_module.feature_extractor, optimizer, train_bn=True)


def finetuning() -> Held:
    """Transfer learning by BaseFinetuning, which adds a group of parameters in the middle."""
    torch.manual_seed(3)
    return fit(Classifier(), max_epochs=3, callbacks=[FeatureExtractorFreezeUnfreeze()])


# Accelerate


def accelerated() -> Held:
    """The loop of Accelerate's page on accumulation: all is prepared, and `accumulate` decides when it steps."""
    with perdure.Session.from_env() as session:
        torch.manual_seed(8)
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=3)
        net = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.1), nn.Linear(8, 6))
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 12)
        model, optimizer, scheduler = accelerator.prepare(net, optimizer, scheduler)
        session.register(model=model, optimizer=optimizer, scheduler=scheduler)
        batches = session.loader(points(48, 3), batch_size=4)
        for _ in session.epochs(3):
            for x, *_ in batches:
                with accelerator.accumulate(model):
                    loss = session.weighted(mse_loss(model(x), x))
                    accelerator.backward(loss)
                    optimizer.step()
                    scheduler.step()
                    optimizer.zero_grad()
                if accelerator.sync_gradients:
                    session.step()
        return {"model": net, "optimizer": optimizer.optimizer, "scheduler": scheduler.scheduler}
