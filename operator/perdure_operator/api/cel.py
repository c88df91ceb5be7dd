"""What the API server refuses, as CEL rules that name the field and the remedy.

A rule's message is all a user sees of a mistake, so ranges are rules too: `minimum` would answer in the API server's
words, and both together would report one mistake twice. Lengths stay in the schema, because the API server computes
the cost of a rule from them. The models and the template's schema carry these rules; `schema.crd` copies them, and
`schema.reference_page` prints the messages. The models do not check them: the API server has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]

VALIDATIONS = "x-kubernetes-validations"


@dataclass(frozen=True)
class Rule:
    """A CEL expression that holds for every valid value, and the message for an invalid one."""

    holds: str
    message: str
    field: str = ""
    """Path below the value that carries the rule, such as `.replicas`: shown as the place of the mistake."""
    forbids: bool = False
    """The field must be absent: the answer does not repeat its value."""

    def schema(self) -> Json:
        """The rule as an item of `x-kubernetes-validations`."""
        schema: Json = {"rule": self.holds, "message": self.message}
        if self.field:
            schema["fieldPath"] = self.field
        if self.forbids:
            schema["reason"] = "FieldValueForbidden"
        return schema


def checked(*rules: Rule, **schema: Any) -> Json:
    """A schema with these rules, for `json_schema_extra` and for schemas written by hand."""
    return {**schema, VALIDATIONS: [rule.schema() for rule in rules]}


def between(name: str, least: int, most: int, hint: str = "") -> Json:
    """The range of an integer, both ends included."""
    return checked(Rule(f"self >= {least} && self <= {most}", f"{name} must be {least} to {most}{_after(hint)}"))


def at_least(name: str, least: int, hint: str = "") -> Json:
    """The lower end of an integer without an upper one."""
    return checked(Rule(f"self >= {least}", f"{name} must be {least} or more{_after(hint)}"))


def one_of(name: str, words: Sequence[str], length: int) -> Json:
    """The words of an enumeration."""
    allowed = ", ".join(f"'{word}'" for word in words)
    choices = f"{', '.join(words[:-1])} or {words[-1]}"
    return checked(Rule(f"self in [{allowed}]", f"{name} must be {choices}"), maxLength=length)


def forbidden(field: str, message: str) -> Rule:
    """The object that carries this rule must not have `field`."""
    return Rule(f"!has(self.{field})", message, f".{field}", forbids=True)


def _after(hint: str) -> str:
    return f": {hint}" if hint else ""
