"""What `perdure convert` makes of other systems' jobs is taken by a real API server as it is."""

from __future__ import annotations

import json

import pytest
import yaml

from e2e.cluster.apiserver import ApiServer
from perdure_operator.cli.convert.sources import convert_command
from tests.api.manifests import Json
from tests.support import foreign_jobs

pytestmark = pytest.mark.api
COMMAND = "torchrun --nnodes 1:4 --nproc-per-node 8 --max-restarts 3 train.py --lr 0.1"


def create(server: ApiServer, namespace: str, manifest: Json) -> Json:
    """Create it, each unknown field an error; returns what is stored."""
    own = {**manifest, "metadata": {**manifest["metadata"], "namespace": namespace}}
    path = f"/apis/perdure.dev/v1alpha1/namespaces/{namespace}/trainingjobs"
    server.ask(f"{path}?fieldValidation=Strict", "POST", own)
    return server.ask(f"{path}/{own['metadata']['name']}")


@pytest.mark.parametrize("name", foreign_jobs.JOBS)
def test_the_converted_job_is_taken_and_stored_as_it_is(api_server: ApiServer, namespace: str, name: str) -> None:
    manifest = yaml.safe_load(foreign_jobs.converted(name))
    stored = create(api_server, namespace, manifest)
    assert stored["spec"]["template"] == manifest["spec"]["template"]
    assert {**stored["spec"], **manifest["spec"]}.keys() == stored["spec"].keys()


def test_words_that_look_like_numbers_are_words_for_an_api_server(api_server: ApiServer, namespace: str) -> None:
    path = f"/apis/perdure.dev/v1alpha1/namespaces/{namespace}/trainingjobs"
    text = foreign_jobs.converted("jobset-torchrun")
    stored = api_server.ask(f"{path}?fieldValidation=Strict", "POST", text.encode(), "application/yaml")
    command = stored["spec"]["template"]["spec"]["containers"][0]["command"]
    assert command == yaml.safe_load(text)["spec"]["template"]["spec"]["containers"][0]["command"]
    assert [word for word in ("1e-4", "12e3", "0o17", "y", "n") if word not in command] == []


def test_a_converted_command_line_is_taken(api_server: ApiServer, namespace: str) -> None:
    manifest = json.loads(json.dumps(convert_command(COMMAND.split()).manifest))
    assert create(api_server, namespace, manifest)["spec"]["elastic"]["maxReplicas"] == 4
