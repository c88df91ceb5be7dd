"""The S3 server: conditional writes, and the failures that tests of storage switch on and off."""

from __future__ import annotations

from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, ConnectTimeoutError, EndpointConnectionError, ReadTimeoutError

from e2e.cluster import Cluster

pytestmark = pytest.mark.cluster
BUCKET = "a-bucket"


@pytest.fixture(scope="module")
def client(cluster: Cluster) -> Any:
    made = boto3.client(
        "s3",
        endpoint_url=cluster.s3.endpoint,
        region_name=cluster.s3.region,
        aws_access_key_id=cluster.s3.access_key,
        aws_secret_access_key=cluster.s3.secret_key,
        config=Config(connect_timeout=5, read_timeout=5, retries={"total_max_attempts": 1}),
    )
    made.create_bucket(Bucket=BUCKET)
    return made


def read(client: Any, key: str) -> bytes:
    body: bytes = client.get_object(Bucket=BUCKET, Key=key)["Body"].read()
    return body


def test_an_object_is_created_only_once_when_that_is_asked_for(client: Any) -> None:
    client.put_object(Bucket=BUCKET, Key="once", Body=b"first", IfNoneMatch="*")
    with pytest.raises(ClientError, match="PreconditionFailed"):
        client.put_object(Bucket=BUCKET, Key="once", Body=b"second", IfNoneMatch="*")

    assert read(client, "once") == b"first"


def test_a_frozen_server_lets_requests_hang_and_a_thawed_one_has_lost_nothing(cluster: Cluster, client: Any) -> None:
    client.put_object(Bucket=BUCKET, Key="kept", Body=b"kept")
    cluster.s3.freeze()
    try:
        with pytest.raises((ReadTimeoutError, ConnectTimeoutError)):
            read(client, "kept")
    finally:
        cluster.s3.thaw()

    assert read(client, "kept") == b"kept"


def test_a_killed_server_refuses_and_a_started_one_has_lost_nothing(cluster: Cluster, client: Any) -> None:
    client.put_object(Bucket=BUCKET, Key="kept", Body=b"kept")
    cluster.s3.kill()
    try:
        with pytest.raises(EndpointConnectionError):
            read(client, "kept")
        assert cluster.dead_components() == ""  # it was meant
    finally:
        cluster.s3.start()

    assert read(client, "kept") == b"kept"
    assert (cluster.s3.folder / BUCKET / "kept").read_bytes() == b"kept"
