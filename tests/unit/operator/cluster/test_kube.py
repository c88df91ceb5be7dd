"""The client asks the environment for a proxy only where there is one: it costs two threads' work at each request."""

from __future__ import annotations

import pytest

from perdure_operator.cluster.kube import behind_a_proxy

SERVER = "https://10.0.0.1:6443"


@pytest.mark.parametrize(
    ("environment", "behind"),
    [
        ({}, False),
        ({"NO_PROXY": "localhost"}, False),
        ({"HTTP_PROXY": "http://proxy:3128"}, False),
        ({"HTTPS_PROXY": "http://proxy:3128"}, True),
        ({"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": "localhost,10.0.0.1"}, False),
    ],
)
def test_a_proxy_counts_where_it_stands_on_the_way(
    environment: dict[str, str], behind: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert behind_a_proxy(SERVER) is behind
