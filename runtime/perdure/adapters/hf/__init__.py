"""The Hugging Face Trainer with a Session's promises: asked to leave, it saves after the update it is at, and the same
script goes on with the next one, with as many ranks as there are then.

    from perdure.adapters.hf import Trainer

    with perdure.Session.from_env() as session:
        trainer = Trainer(session=session, model=model, args=args, train_dataset=train, eval_dataset=test)
        trainer.train()

The Trainer's loop stays its own: its losses, evaluations, callbacks and logs. The Session shares out the training
data, keeps the checkpoints, and decides, where the Trainer fetches the batches of its next update, whether to save and
whether to leave. For Trainers of other classes there is the mixin: `class Mine(WithSession, SFTTrainer)`.
"""

import transformers

from perdure.adapters.hf.trainer import WithSession

__all__ = ["Seq2SeqTrainer", "Trainer", "WithSession"]


class Trainer(WithSession, transformers.Trainer):
    """transformers.Trainer, driven so."""


class Seq2SeqTrainer(WithSession, transformers.Seq2SeqTrainer):
    """transformers.Seq2SeqTrainer, driven so."""
