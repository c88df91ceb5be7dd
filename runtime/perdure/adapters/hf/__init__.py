"""The Hugging Face Trainer driven by a Session.

A training that is asked to leave saves after the present update. The same script then resumes with the next update, on
any number of ranks.

    from perdure.adapters.hf import Trainer

    with perdure.Session.from_env() as session:
        trainer = Trainer(session=session, model=model, args=args, train_dataset=train, eval_dataset=test)
        trainer.train()

The Trainer keeps its own loop, losses, evaluations, callbacks and logs. The Session distributes the training data and
keeps the checkpoints. It decides whether to save and whether to leave when the Trainer fetches the batches of its next
update. For other Trainer classes use the mixin: `class Mine(WithSession, SFTTrainer)`.
"""

import transformers

from perdure.adapters.hf.trainer import WithSession

__all__ = ["Seq2SeqTrainer", "Trainer", "WithSession"]


class Trainer(WithSession, transformers.Trainer):
    """transformers.Trainer, driven by a Session."""


class Seq2SeqTrainer(WithSession, transformers.Seq2SeqTrainer):
    """transformers.Seq2SeqTrainer, driven by a Session."""
