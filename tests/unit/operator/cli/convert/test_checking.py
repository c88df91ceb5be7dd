"""What is checked of a conversion before it is printed: the CRD's own types, ranges and fields."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.errors import UserError
from perdure_operator.cli.convert.checking import checked_spec
from perdure_operator.cli.convert.fields import Conversion, Fields
from tests.api.manifests import full, job, template


def check(**spec: Any) -> tuple[Fields, list[str]]:
    conversion = Conversion({"spec": {"replicas": 1, **job()["spec"], **spec}})
    return checked_spec(conversion), [one.where for one in conversion.remarks]


def test_a_good_job_passes_as_it_is() -> None:
    assert checked_spec(Conversion(full())) == full()["spec"]


def test_a_field_that_no_pod_has_is_left_out_and_told() -> None:
    spec, told = check(template=template({"imagePullPolcy": "Always"}))
    assert spec["template"] == template()
    assert told == ["spec.template.spec.containers[0].imagePullPolcy"]


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"replicas": 0}, "spec.replicas: replicas must be 1 to 1000"),
        ({"replicas": True}, "spec.replicas: type integer is expected"),
        ({"suspend": "yes"}, "spec.suspend: type boolean is expected"),
        ({"activeDeadlineSeconds": 2**63}, "spec.activeDeadlineSeconds: type integer is expected"),
        ({"checkpoint": {"uri": "s3://bucket"}}, "spec.checkpoint.uri: checkpoint.uri must be s3://bucket/prefix"),
        ({"checkpoint": {}}, "spec.checkpoint.uri is missing"),
        ({"elastic": {"minReplicas": 3, "maxReplicas": 2}}, "minReplicas must not be above maxReplicas"),
        ({"template": template({"env": [{"name": "A", "value": 1}]})}, "env[0].value: type string is expected"),
        ({"template": template({"resources": {"limits": {"cpu": 0.5}}})}, "limits.cpu: type integer or string"),
        ({"template": template({"command": ["a"] * 1025})}, "command is too long: at most 1024"),
        ({"template": template({"ports": [{"containerPort": 2**31}]})}, "containerPort: type integer is expected"),
    ],
)
def test_what_an_api_server_would_refuse_is_refused_with_the_field(spec: Fields, says: str) -> None:
    with pytest.raises(UserError) as refused:
        check(**spec)
    assert says in str(refused.value)
