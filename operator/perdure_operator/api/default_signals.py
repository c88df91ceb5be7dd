"""The signals that Perdure ships, as rows: `default_signals.yaml` beside this module, validated when it is read."""

from __future__ import annotations

from importlib import resources
from typing import Final

import yaml

from perdure_operator.api.signal_rows import SignalRow

AUTOSCALER_TAINT: Final = "ToBeDeletedByClusterAutoscaler"
KARPENTER_TAINT: Final = "karpenter.sh/disrupted"
VACATE_ANNOTATION: Final = "perdure.dev/vacate"
SAVE_ANNOTATION: Final = "perdure.dev/save"
"""Each new value asks the job's run for a save."""
NO_EXECUTE: Final = "NoExecute"

_ROWS: Final = resources.files(__package__).joinpath("default_signals.yaml").read_text(encoding="utf-8")
DEFAULT_SIGNALS: Final = tuple(SignalRow.model_validate(row) for row in yaml.safe_load(_ROWS))
"""In the order in which they count."""
