"""Certificates and kubeconfig files, checked by openssl itself."""

from __future__ import annotations

import json
import stat
import subprocess
from pathlib import Path

import pytest

from e2e.cluster.pki import Pki, kubeconfig


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    made = Pki(tmp_path_factory.mktemp("pki"))
    made.create()
    made.issue("n1", "/O=system:nodes/CN=system:node:n1", ["IP:100.64.0.11"])
    return made


def openssl(*words: str | Path) -> str:
    return subprocess.run(["openssl", *map(str, words)], capture_output=True, text=True, check=True).stdout


def test_a_certificate_passes_the_strictest_check_against_the_authority(pki: Pki) -> None:
    strict = ["verify", "-x509_strict", "-purpose", "sslserver", "-verify_ip", "100.64.0.11"]
    assert openssl(*strict, "-CAfile", pki.authority, pki.certificate("n1")).endswith("OK\n")


def test_a_certificate_names_the_node_and_is_no_authority(pki: Pki) -> None:
    shown = openssl("x509", "-in", pki.certificate("n1"), "-noout", "-subject", "-ext", "basicConstraints")
    assert "O = system:nodes, CN = system:node:n1" in shown
    assert "CA:FALSE" in shown


def test_a_node_may_have_a_name_as_long_as_an_autoscaler_gives(pki: Pki) -> None:
    pki.issue("long", f"/O=system:nodes/CN=system:node:{'n' * 63}")
    shown = openssl("x509", "-in", pki.certificate("long"), "-noout", "-subject")
    assert f"CN = system:node:{'n' * 63}" in shown


def test_keys_are_readable_by_their_owner_only(pki: Pki) -> None:
    assert all(not stat.S_IMODE(pki.key(name).stat().st_mode) & 0o077 for name in ("ca", "n1"))
    assert not stat.S_IMODE(pki.tokens_key.stat().st_mode) & 0o077


def test_a_kubeconfig_carries_all_that_is_needed_to_connect(pki: Pki) -> None:
    config = json.loads(kubeconfig("operator", "https://127.0.0.1:6443", pki.authority, {"token": "secret"}))

    assert config["current-context"] == "operator"
    assert config["clusters"][0]["cluster"]["server"] == "https://127.0.0.1:6443"
    assert config["users"] == [{"name": "operator", "user": {"token": "secret"}}]
