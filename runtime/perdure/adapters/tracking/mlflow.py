"""Runs of an MLflow server. Needs the package `mlflow` or `mlflow-skinny`."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Final

from mlflow import MlflowClient
from mlflow.entities import Metric

KEY: Final = "perdure-key"
"""The tag by which a resumed training finds its run."""
LIMITS: Final = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
"""MLflow's own are 7 retries of 120 s each, for which all ranks would wait. What the environment says stays."""
_MOST: Final = 1000
"""Metrics of one request, by MLflow's REST reference for `log-batch`."""


class MLflow:
    """One run of an experiment is one history. Marks are tags of the run."""

    def __init__(self, experiment: str, *, run_name: str | None = None, tracking_uri: str | None = None) -> None:
        """`tracking_uri`: as for MLflow, which otherwise reads MLFLOW_TRACKING_URI."""
        self._experiment, self._run_name, self._uri = experiment, run_name, tracking_uri
        self._client: MlflowClient | None = None
        self._run = ""
        self._metrics: list[Metric] = []

    def open(self, key: str) -> None:
        """See `HistorySink`."""
        for name, value in LIMITS.items():
            os.environ.setdefault(name, value)
        client = self._client = MlflowClient(tracking_uri=self._uri)
        experiment = client.get_experiment_by_name(self._experiment)
        number = experiment.experiment_id if experiment else client.create_experiment(self._experiment)
        runs = client.search_runs([number], f"tags.`{KEY}` = '{key}'", max_results=1)
        run = runs[0] if runs else client.create_run(number, tags={KEY: key}, run_name=self._run_name)
        self._run = run.info.run_id
        self._metrics = []
        if runs:
            client.set_terminated(self._run, "RUNNING")

    def last_step(self, name: str) -> int:
        """See `HistorySink`. Asks the server."""
        marks = self._open_client.get_run(self._run).data.tags
        steps = [metric.step for metric in self._open_client.get_metric_history(self._run, name)]
        steps += [int(tag.rpartition(".")[2]) for tag in marks if tag.startswith(f"{name}.")]
        return max(steps, default=-1)

    def write(self, step: int, values: Mapping[str, float | str]) -> None:
        """See `HistorySink`. Metrics are sent by `flush`."""
        now = time.time_ns() // 1_000_000
        for name, value in values.items():
            if isinstance(value, str):
                self._open_client.set_tag(self._run, f"{name}.{step}", value)
            else:
                self._metrics.append(Metric(name, float(value), now, step))

    def flush(self) -> None:
        """See `HistorySink`."""
        while self._metrics:
            self._open_client.log_batch(self._run, metrics=self._metrics[:_MOST])
            del self._metrics[:_MOST]

    def close(self) -> None:
        """See `HistorySink`."""
        self.flush()
        self._open_client.set_terminated(self._run)

    @property
    def _open_client(self) -> MlflowClient:
        if self._client is None:
            raise RuntimeError("open() comes first")
        return self._client
