"""Checks a conversion's spec by the CRD's own schema and model, so that what is printed can be applied.

Unknown fields of a pod are left out and remarked, as an API server would leave them out; any other mistake is a
UserError. Of the CRD's rules those of one number or text are checked, the others by the API server alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from pydantic import ValidationError

from perdure.errors import UserError
from perdure_operator.api.cel import VALIDATIONS
from perdure_operator.api.spec import TrainingJobSpec
from perdure_operator.cli.convert.fields import Conversion, Fields
from perdure_operator.schema.crd import spec_schema

_RANGE: Final = re.compile(r"self >= (\d+)(?: && self <= (\d+))?")
_PATTERN: Final = re.compile(r"self\.matches\(r?'(.*)'\)")
_TYPES: Final[Mapping[str, type]] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
}


def checked_spec(conversion: Conversion) -> Fields:
    """The spec, checked, without fields that no TrainingJob has. UserError with the field and the cause."""
    spec: Fields = _checked(conversion.manifest["spec"], _schema(), "spec", conversion)
    elastic = spec.get("elastic")
    if elastic and elastic["minReplicas"] > elastic["maxReplicas"]:
        raise UserError("spec.elastic.minReplicas must not be above maxReplicas: correct the source's sizes")
    if spec["checkpoint"]["uri"].startswith("file://") and (elastic or spec["replicas"] > 1):
        raise UserError("spec.checkpoint.uri: a file:// root is for one member: give --checkpoint s3://bucket/prefix")
    try:
        TrainingJobSpec.model_validate(spec)
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(f"spec.{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    return spec


@cache
def _schema() -> Fields:
    return spec_schema()


def _checked(value: Any, schema: Fields, where: str, conversion: Conversion) -> Any:
    _check_type(value, schema, where)
    for rule in schema.get(VALIDATIONS, ()):
        if not _holds(rule["rule"], value):
            raise UserError(f"{where}: {rule['message']}")
    if isinstance(value, list):
        inner = schema.get("items", {})
        return [_checked(one, inner, f"{where}[{place}]", conversion) for place, one in enumerate(value)]
    if isinstance(value, dict):
        return _checked_fields(value, schema, where, conversion)
    return value


def _checked_fields(value: Fields, schema: Fields, where: str, conversion: Conversion) -> Fields:
    fields, others = schema.get("properties"), schema.get("additionalProperties", {})
    kept = {}
    for name, inner in value.items():
        if fields is not None and name not in fields:
            conversion.remark(f"{where}.{name}", "left out: no TrainingJob has such a field")
        elif inner is not None:
            kept[name] = _checked(inner, fields[name] if fields is not None else others, f"{where}.{name}", conversion)
    for name in schema.get("required", ()):
        if name not in kept:
            raise UserError(f"{where}.{name} is missing")
    return kept


def _check_type(value: Any, schema: Fields, where: str) -> None:
    if schema.get("x-kubernetes-int-or-string"):
        good = isinstance(value, int | str) and not isinstance(value, bool)
        wanted = "integer or string"
    else:
        wanted = schema.get("type", "")
        good = not wanted or isinstance(value, _TYPES[wanted])
        good = good and (wanted == "boolean" or not isinstance(value, bool))
        bits = 31 if schema.get("format") == "int32" else 63
        good = good and not (isinstance(value, int) and abs(value) >> bits)
    if not good:
        raise UserError(f"{where}: type {wanted} is expected, and this is {value!r:.60}")
    if isinstance(value, str | list | dict):
        for bound in ("maxLength", "maxItems", "maxProperties"):
            if len(value) > schema.get(bound, len(value)):
                raise UserError(f"{where} is too long: at most {schema[bound]} are possible")


def _holds(rule: str, value: Any) -> bool:
    """Whether a rule holds; true of a rule that only an API server understands."""
    if found := _RANGE.fullmatch(rule):
        least, most = found.groups()
        return bool(int(least) <= value <= (int(most) if most else value))
    if found := _PATTERN.fullmatch(rule):
        return re.search(found[1], value) is not None
    return True
