"""Saves and restores accumulated metrics: an epoch's means and sums, and torchmetrics' states, are in no state_dict.

Each rank has its own values. With the same number of ranks each rank restores its own. With another number rank 0
restores the values of all, and the others start with neutral ones, so that sums over the ranks stay the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from lightning.pytorch.trainer.connectors.logger_connector.result import _Metadata, _ResultMetric, _Sync

from perdure.errors import UserError
from perdure.session.driven import say

_ADDED: Final = ("value", "cumulated_batch_size")
_META: Final = (
    *("fx", "name", "prog_bar", "logger", "on_step", "on_epoch"),
    *("enable_graph", "add_dataloader_idx", "dataloader_idx", "metric_attribute"),
)


def read(trainer: Any) -> dict[str, Any]:
    """The present values of this rank."""
    logged = trainer._logger_connector  # there is no public access
    return {
        "callback": dict(logged._callback_metrics),
        "logged": dict(logged._logged_metrics),
        "bar": dict(logged._progress_bar_metrics),
        "epoch": {key: _read_result(found) for key, found in _results(trainer).items() if not found.has_reset},
        "modules": {name: _read_metric(metric) for name, metric in _metrics(trainer)},
    }


def restore(trainer: Any, every: Sequence[Mapping[str, Any]], rank: int, world: int) -> None:
    """Restore from `every`, the values of each rank when they were saved."""
    same = len(every) == world
    own = every[rank] if same else every[0]
    logged = trainer._logger_connector
    logged._callback_metrics = dict(own["callback"])
    logged._logged_metrics = dict(own["logged"])
    logged._progress_bar_metrics = dict(own["bar"])
    metrics = dict(_metrics(trainer))
    for name, metric in metrics.items():
        parts = [found["modules"][name] for found in every if name in found["modules"]]
        if same and name in own["modules"]:
            _load_metric(metric, own["modules"][name])
        elif rank == 0 and parts:
            _join_metric(name, metric, parts)
    results = _results(trainer)
    results.clear()
    for key in own["epoch"]:
        parts = [found["epoch"][key] for found in every if key in found["epoch"]]
        saved = own["epoch"][key] if same else _joined(parts, neutral=rank > 0)
        results[key] = _made_result(trainer, saved, metrics)


def _results(trainer: Any) -> Any:
    return trainer.fit_loop.epoch_loop._results


def _metrics(trainer: Any) -> Iterator[tuple[str, Any]]:
    """The module's torchmetrics, by name."""
    return ((name, part) for name, part in trainer.lightning_module.named_modules() if hasattr(part, "metric_state"))


# What `self.log` accumulates.


def _read_result(found: Any) -> dict[str, Any]:
    meta = found.meta
    if meta.sync.group is not None:
        raise UserError(f"log({meta.name!r}, sync_dist_group=...): its epoch mean cannot be saved: leave it out")
    saved = {name: getattr(meta, name) for name in _META} | {
        "reduce": meta.reduce_fx.__name__,
        "sync": [meta.sync.should, meta.sync.rank_zero_only],
        "tensor": found.is_tensor,
        "count": found._update_count,  # torchmetrics warns if it was never updated
        "last": found._forward_cache,
    }
    return saved | {name: getattr(found, name) for name in _ADDED if found.is_tensor and hasattr(found, name)}


def _made_result(trainer: Any, saved: Mapping[str, Any], metrics: Mapping[str, Any]) -> Any:
    should, rank_zero_only = saved["sync"]
    meta = _Metadata(**{name: saved[name] for name in _META}, reduce_fx=getattr(torch, saved["reduce"]))
    meta.sync = _Sync(_should=should, fn=trainer.strategy.reduce, _group=None, rank_zero_only=rank_zero_only)
    made = _ResultMetric(meta, saved["tensor"])
    made.has_reset = False
    made._update_count, made._forward_cache = saved["count"], saved["last"]
    for name in _ADDED:
        if name in saved:
            setattr(made, name, saved[name])
    if not saved["tensor"]:
        made.value = metrics[saved["metric_attribute"]]
    return made.to(trainer.strategy.root_device)


def _joined(parts: Sequence[Mapping[str, Any]], *, neutral: bool) -> dict[str, Any]:
    """One value reduced over all ranks; with `neutral` the value that does not change such a result."""
    found = dict(parts[0])
    if not found["tensor"]:
        return found
    if neutral:
        limit = {"max": float("-inf"), "min": float("inf")}.get(found["reduce"], 0.0)
        found["value"] = torch.full_like(found["value"], limit)
        if "cumulated_batch_size" in found:
            found["cumulated_batch_size"] = torch.zeros_like(found["cumulated_batch_size"])
        return found
    values = torch.stack([part["value"] for part in parts])
    if found["reduce"] in ("max", "min"):
        found["value"] = getattr(values, f"a{found['reduce']}")(0)
        return found
    found["value"] = values.sum(0)
    if "cumulated_batch_size" in found:
        found["cumulated_batch_size"] = sum(part["cumulated_batch_size"] for part in parts)
    return found


# torchmetrics.


def _read_metric(metric: Any) -> dict[str, Any]:
    return {"count": metric._update_count, "state": dict(metric.metric_state)}


def _load_metric(metric: Any, saved: Mapping[str, Any]) -> None:
    for name, value in saved["state"].items():
        setattr(metric, name, value)
    metric._update_count = saved["count"]
    metric.to(metric.device)


def _join_metric(name: str, metric: Any, parts: Sequence[Mapping[str, Any]]) -> None:
    _load_metric(metric, parts[0])
    for part in parts[1:]:
        if not part["count"]:
            continue
        try:
            metric.merge_state(dict(part["state"]))
        except (RuntimeError, ValueError) as error:
            say(
                f"metric {name!r} cannot be merged with that of the other ranks, and lacks their values until its "
                f"next reset: {error}"
            )
            return
