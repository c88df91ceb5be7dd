"""Lightning's Trainer with a Session's promises: asked to leave, it saves after the step it is at, and the same script
goes on with the next batch, with as many ranks as there are then.

    with perdure.Session.from_env() as session:
        strategy = SessionStrategy(session)
        train = strategy.loader(train_set, batch_size=64)
        trainer = lightning.Trainer(strategy=strategy, max_epochs=10)
        trainer.fit(module, train, validation)

Lightning's loops stay its own: its validation, callbacks, loggers and schedulers. The Session shares out the training
data and decides, where Lightning asks for the next batch, whether to save and whether to leave.
"""

from perdure.adapters.lightning.strategy import SessionStrategy

__all__ = ["SessionStrategy"]
