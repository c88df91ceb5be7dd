"""Base models of values that cross a boundary: frozen, camelCase in JSON, unknown fields refused."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class Model(BaseModel):
    """A frozen value whose JSON names are camelCase; the string under a field describes it in every schema."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        populate_by_name=True,
        use_attribute_docstrings=True,
    )


class TolerantModel(Model):
    """A value that an older operator may read after a newer one wrote it: unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore")
