"""What is read of a file: objects in bounds, or a reason in one line."""

from __future__ import annotations

import pytest

from perdure.errors import UserError
from perdure_operator.cli.convert import documents

BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))


def test_yaml_and_json_and_several_objects_are_read() -> None:
    assert documents.read("kind: Job\n---\n---\n{kind: Service}\n") == [{"kind": "Job"}, {"kind": "Service"}]
    assert documents.read('{"kind": "Job", "spec": {"a": [1, 1.5, true, null]}}') == [
        {"kind": "Job", "spec": {"a": [1, 1.5, True, None]}}
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no object of Kubernetes"),
        ("- a", "no object of Kubernetes"),
        ("a: b: c", "not YAML"),
        ("a: !!python/object/apply:os.getcwd []", "not YAML"),
        ("\x00", "not YAML"),
        ("when: 2026-02-30", "not YAML that can be read"),
        (BOMB, "more than 100000 values"),
        ("a: &a [*a]", "deeper than 100 levels"),
        ("[" * 20_000, "not YAML that can be read"),
        ("{" + "a: {" * 200 + "}" * 201, "deeper than 100 levels"),
        ("x" * 1_000_001, "more than 1000000 characters"),
        ("when: 2026-01-01", "when: a date that no object"),
        ("spec: {data: !!binary aGk=}", "spec.data: a bytes"),
        ("spec: {on: .inf}", "the name True is no string"),
        ("spec: {many: .inf}", "spec.many: a float"),
        ("spec: {many: 99999999999999999999}", "spec.many: a int"),
        ("spec: [{1: 2}]", "spec[0]: the name 1 is no string"),
    ],
)
def test_anything_else_is_refused_with_the_reason(text: str, says: str) -> None:
    with pytest.raises(UserError) as refused:
        documents.read(text)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)
