"""The chart says what it may, and ships the CRD that belongs to it. Rendering needs helm: see tests/api."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

REPOSITORY = Path(__file__).parents[3]
CHART = REPOSITORY / "helm" / "perdure"


def test_the_charts_crd_is_the_generated_one() -> None:
    (generated,) = (REPOSITORY / "crds").glob("*.yaml")
    assert (CHART / "crds" / generated.name).read_bytes() == generated.read_bytes()


def test_every_value_is_described_by_the_schema() -> None:
    values: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert set(schema["properties"]) - {"global"} == set(values)
    assert schema["additionalProperties"] is False
