"""Two jobs share a root only where they write to the same place; the root itself decides nothing."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.wire import Env
from perdure_operator.api.spec import TrainingJobSpec
from perdure_operator.cluster import member
from perdure_operator.cluster.read import parse, roots
from perdure_operator.cluster.read.roots import Root
from tests.support.raw import snapshot, template

HOST = {"hostPath": {"path": "/mnt/ckpt"}}


def claim(name: str) -> dict[str, Any]:
    return {"persistentVolumeClaim": {"claimName": name}}


def s3(uri: str = "s3://bucket/a", env: list[dict[str, Any]] | None = None, **fields: Any) -> Root | None:
    spec = {"checkpoint": {"uri": uri} | ({"s3": fields} if fields else {}), "template": template(env=env or [])}
    return roots.of("ns", TrainingJobSpec.model_validate(spec))


def file(volume: dict[str, Any], folder: str = "/ckpt/run", *, namespace: str = "ns", **mount: Any) -> Root | None:
    body = template(volumeMounts=[{"name": "data", "mountPath": "/ckpt", **mount}])
    body["spec"]["volumes"] = [{"name": "other", "emptyDir": {}}, {"name": "data"} | volume]
    spec = {"checkpoint": {"uri": f"file://{folder}"}, "template": body}
    return roots.of(namespace, TrainingJobSpec.model_validate(spec))


def test_a_bucket_is_another_one_at_another_endpoint() -> None:
    here = s3(endpoint="http://a")
    assert here == s3("s3://bucket/a/", endpoint="http://a/")
    assert len({here, s3(), s3(endpoint="http://b"), s3("s3://bucket/b", endpoint="http://a")}) == 4


def test_an_endpoint_may_also_be_in_the_environment() -> None:
    assert s3(env=[{"name": "AWS_ENDPOINT_URL", "value": "http://a"}]) == s3(endpoint="http://a")
    assert s3(env=[{"name": "AWS_ENDPOINT_URL", "value": "http://a"}]) != s3()


def place(uri: str = "s3://bucket/a", env: list[dict[str, Any]] | None = None, **fields: Any) -> str:
    """What a member that the operator has made tells."""
    spec = {"checkpoint": {"uri": uri} | ({"s3": fields} if fields else {}), "template": template(env=env or [])}
    made = member.pod(snapshot(spec=TrainingJobSpec.model_validate(spec)), "digits-3f2a-0")
    return parse.pod(made | {"metadata": made["metadata"] | {"uid": "u"}}).root


def test_a_member_tells_where_it_writes_to_in_the_same_way() -> None:
    here = place(endpoint="http://a")
    assert (
        here
        == place(endpoint="http://a/", region="eu")
        == place(env=[{"name": "AWS_ENDPOINT_URL", "value": "http://a"}])
    )
    assert len({here, place(), place(endpoint="http://b"), place("s3://bucket/b", endpoint="http://a")}) == 4
    assert "" not in {here, place()}


def test_where_a_member_writes_to_is_unknown_where_its_pod_alone_does_not_tell() -> None:
    secret = {"name": "AWS_ENDPOINT_URL", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
    assert place(env=[secret]) == ""
    assert place("file:///ckpt") == ""
    assert roots.of_pod({"env": [{"name": Env.ROOT, "value": "s3://b/a"}], "envFrom": [{}]}) == ""
    assert roots.of_pod({}) == ""


def test_a_folder_is_that_of_the_claim_in_its_namespace() -> None:
    assert file(claim("one")) == file(claim("one"))
    assert len({file(claim("one")), file(claim("two")), file(claim("one"), namespace="another")}) == 3


def test_the_same_place_of_one_claim_may_be_mounted_in_different_ways() -> None:
    assert file(claim("one")) == file(claim("one"), "/data/run", mountPath="/data")
    assert file(claim("one")) == file(claim("one"), "/run/x", mountPath="/run/x", subPath="run")
    assert file(claim("one")) != file(claim("one"), subPath="deeper")


def test_a_nodes_folder_is_the_same_for_every_namespace() -> None:
    assert file(HOST) == file(HOST, namespace="another")
    assert file(HOST) != file({"hostPath": {"path": "/mnt/other"}})


@pytest.mark.parametrize("volume", [{"emptyDir": {}}, {"ephemeral": {}}, {}])
def test_what_only_one_pod_has_is_shared_with_no_other(volume: dict[str, Any]) -> None:
    assert file(volume) is None


def test_a_folder_on_no_volume_is_shared_with_no_other() -> None:
    assert file(claim("one"), "/elsewhere") is None
    assert file(claim("one"), "/ckpts") is None


def test_volumes_of_other_kinds_are_distinguished_by_their_fields() -> None:
    server = {"nfs": {"server": "s", "path": "/export"}}
    assert file(server) == file(server, namespace="another")
    drive = {"csi": {"driver": "d", "volumeAttributes": {"a": "1"}}}
    assert file(drive) == file(drive)
    assert file(drive) != file({"csi": {"driver": "d", "volumeAttributes": {"a": "2"}}})


@pytest.mark.parametrize("spec", [None, "x", {"containers": "x"}, {"containers": [{"volumeMounts": ["x"]}]}])
def test_a_template_of_any_shape_is_read(spec: Any) -> None:
    body = {"checkpoint": {"uri": "file:///ckpt"}, "template": {"spec": spec}}
    assert roots.of("ns", TrainingJobSpec.model_validate(body)) is None
