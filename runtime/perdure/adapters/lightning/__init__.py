"""Lightning's Trainer driven by a Session.

A training that is asked to leave saves after the present step. The same script then resumes with the next batch, on any
number of ranks.

    with perdure.Session.from_env() as session:
        strategy = SessionStrategy(session)
        train = strategy.loader(train_set, batch_size=64)
        trainer = lightning.Trainer(strategy=strategy, max_epochs=10)
        trainer.fit(module, train, validation)

Lightning keeps its own loops, validation, callbacks, loggers and schedulers. The Session distributes the training data.
It decides whether to save and whether to leave when Lightning fetches the next batch.
"""

from perdure.adapters.lightning.strategy import SessionStrategy

__all__ = ["SessionStrategy"]
