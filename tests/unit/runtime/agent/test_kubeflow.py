"""What a script posts in Kubeflow's words: by transformers' own callback to a real agent, and by bad clients."""

from __future__ import annotations

import json
import selectors
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure.agent.kubeflow import (
    MOST_BYTES,
    MOST_CONNECTIONS,
    SECONDS,
    TOKEN,
    URL,
    KubeflowServer,
    kubeflow_environment,
    posted_values,
)
from perdure.wire import Train
from tests.unit.runtime.agent.member import DEADLINE, HERE, Member
from tests.unit.runtime.agent.report_server import EAGER, answer, issued, serving

TRAINER = [sys.executable, str(HERE / "posting_trainer.py")]
RUN = Train(1, 0, 2, "10.0.0.1:29500")


def test_transformers_own_callback_is_answered_without_an_operator_and_its_metrics_are_in_the_reports_to_one(
    tmp_path: Path,
) -> None:
    """The callback says 0 %, 100 % and 0 %, and that nothing is left: progress is what the session says."""
    environ = {"PYTHONPATH": str(HERE.parents[3])}
    with serving(issued(tmp_path / "pki"), answer(EAGER)) as server, Member(tmp_path, *TRAINER, environ=environ) as pod:
        pod.assign(RUN)
        assert pod.told("answered") is True
        server.put_into(tmp_path)
        found = server.next().report
        assert found.values == {"accuracy": 0.75, "loss": 0.5}
        assert (found.progress, found.remaining_seconds, found.step) == (0.25, 30.0, 5)


class Pod:
    """A server in this process, its clock, and its clients."""

    def __init__(self, folder: Path) -> None:
        self.now = 100.0
        self.selector = selectors.DefaultSelector()
        self.server = KubeflowServer(self.selector, now=lambda: self.now)
        self.server.begin(folder)
        self.environ = self.server.environment({})
        self._clients: list[socket.socket] = []

    def client(self) -> socket.socket:
        _, _, port = self.environ[URL].rpartition(":")
        made = socket.create_connection(("127.0.0.1", int(port)), timeout=DEADLINE)
        self._clients.append(made)
        return made

    def sends(self, client: socket.socket, *parts: bytes) -> str:
        """The answer's first line, once the server has looked after each part; "" if it has ended the connection."""
        for part in parts:
            client.sendall(part)
            self.server.look()
        return client.recv(4096).decode().partition("\r\n")[0]

    def close(self) -> None:
        self.server.close()
        for client in self._clients:
            client.close()
        self.selector.close()


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[Pod]:
    made = Pod(tmp_path)
    yield made
    made.close()


def request(metrics: Any, head: str = "POST / HTTP/1.1") -> bytes:
    body = json.dumps({"trainerStatus": {"progressPercentage": 3, "metrics": metrics}})
    return f"{head}\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


LOSS = [{"name": "loss", "value": "0.5"}]


def test_a_request_that_comes_in_parts_is_answered_when_it_is_whole(pod: Pod) -> None:
    client, whole = pod.client(), request(LOSS)
    assert pod.sends(client, whole[:9], whole[9:-5], whole[-5:]) == "HTTP/1.1 200 OK"
    assert pod.server.values == {"loss": 0.5}
    assert client.recv(1) == b"", "the connection is over"
    assert len(pod.selector.get_map()) == 1, "of the port alone"


def test_the_newest_numbers_stay_until_another_trainer_begins(pod: Pod) -> None:
    for metrics in (LOSS, [], [{"name": "total_steps", "value": "100"}]):
        pod.sends(pod.client(), request(metrics))
        assert pod.server.values == {"loss": 0.5}
    pod.sends(pod.client(), request([{"name": "accuracy", "value": "1"}]))
    assert pod.server.values == {"accuracy": 1.0}
    pod.server.forget()
    assert pod.server.values == {}


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (request(LOSS, "GET / HTTP/1.1"), 400),
        (b"POST / HTTP/1.1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (f"POST / HTTP/1.1\r\nContent-Length: {MOST_BYTES + 1}\r\n".encode(), 413),
        (b"\x16\x03\x01 is TLS\r\n\r\n", 400),
    ],
    ids=["GET", "no length", "chunks", "a length below zero", "too long", "TLS"],
)
def test_what_is_no_request_of_kubeflows_is_refused_at_once(pod: Pod, sent: bytes, status: int) -> None:
    assert pod.sends(pod.client(), sent).startswith(f"HTTP/1.1 {status} ")
    assert pod.server.values == {}


def test_a_head_without_an_end_is_not_read_for_ever(pod: Pod) -> None:
    client = pod.client()
    for _ in range(MOST_BYTES // 4096 + 1):
        client.sendall(b"x" * 4096)
        pod.server.look()
    assert len(pod.selector.get_map()) == 1


def test_a_client_that_says_no_more_is_dropped_in_time_and_one_that_goes_away_at_once(pod: Pod) -> None:
    slow, gone = pod.client(), pod.client()
    slow.sendall(b"POST / HTTP/1.1\r\n")
    pod.server.look()
    assert len(pod.selector.get_map()) == 3
    gone.close()
    pod.server.look()
    assert len(pod.selector.get_map()) == 2
    pod.now += SECONDS
    assert pod.sends(slow, b"") == "HTTP/1.1 408 Request Timeout"
    assert len(pod.selector.get_map()) == 1


def test_more_connections_than_it_keeps_are_ended_at_once(pod: Pod) -> None:
    kept = [pod.client() for _ in range(MOST_CONNECTIONS)]
    pod.server.look()
    assert pod.sends(pod.client(), b"") == ""
    assert pod.sends(kept[0], request(LOSS)) == "HTTP/1.1 200 OK"
    assert pod.sends(pod.client(), request(LOSS)) == "HTTP/1.1 200 OK"


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"5", b"[]", b"\xff", b"[" * 5000, b'{"trainerStatus": 3}', b'{"trainerStatus": {"metrics": [1]}}'),
        b'{"trainerStatus": {"metrics": [{"name": [], "value": "1"}]}}',
        b'{"trainerStatus": {"metrics": {"a": 1}}}',
    ],
    ids=range(9),
)
def test_a_body_that_is_none_of_kubeflows_has_no_values(body: bytes) -> None:
    assert posted_values(body) == {}


def test_of_its_metrics_the_numbers_count_that_a_report_does_not_have_anyway() -> None:
    metrics = [*LOSS, {"name": "current_step", "value": "5"}, {"name": "note", "value": "warm"}]
    metrics += [{"name": "inf", "value": "inf"}, {"name": "a b", "value": "1"}, {"name": "rate", "value": "2e-05"}]
    assert posted_values(json.dumps({"trainerStatus": {"metrics": metrics}}).encode()) == {"loss": 0.5, "rate": 2e-05}


def test_the_tokens_file_has_something_and_no_token(pod: Pod) -> None:
    assert Path(pod.environ[TOKEN]).read_text() == "none"


def test_where_there_is_no_place_for_it_scripts_are_told_of_no_server(tmp_path: Path) -> None:
    with selectors.DefaultSelector() as selector:
        server = KubeflowServer(selector)
        server.begin(tmp_path / "nowhere")
        server.look()
        assert server.environment({}) == {}


TOLD = {URL: "http://127.0.0.1:5", TOKEN: "/token"}


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        ({}, TOLD),
        ({URL: "https://of-a-trainjob"}, {}),
        ({"http_proxy": "http://proxy:3128"}, {**TOLD, "no_proxy": "127.0.0.1"}),
        ({"HTTP_PROXY": "http://p", "NO_PROXY": ".svc,10.0.0.0/8"}, {**TOLD, "no_proxy": ".svc,10.0.0.0/8,127.0.0.1"}),
        ({"NO_PROXY": ".svc"}, TOLD),
    ],
    ids=["nothing", "Kubeflow's own", "a proxy", "a proxy with exceptions", "exceptions alone"],
)  # fmt: skip
def test_a_script_is_told_of_it_unless_kubeflow_has_told_it_of_another_and_asks_no_proxy(
    environ: dict[str, str], told: dict[str, str]
) -> None:
    assert kubeflow_environment(environ, "http://127.0.0.1:5", Path("/token")) == told
