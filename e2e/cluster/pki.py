"""Keys, certificates and kubeconfig files of one cluster, made with openssl. They live as long as the cluster."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

DAYS = "30"
# openssl's own default configuration would make every certificate an authority, and refuse the subject of a node whose
# name is as long as an autoscaler's: X.509 gives a common name 64 characters, and Kubernetes does not mind
CONFIG = """\
openssl_conf=init
[init]
stbl_section=strings
[strings]
CN=min:1,max:300
[req]
distinguished_name=dn
prompt=no
[dn]
"""
NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


@dataclass(frozen=True)
class Pki:
    """A certificate authority in a folder."""

    folder: Path

    @property
    def authority(self) -> Path:
        """The certificate that all others are checked against."""
        return self.folder / "ca.crt"

    @property
    def authority_key(self) -> Path:
        """Its key."""
        return self.folder / "ca.key"

    @property
    def tokens_key(self) -> Path:
        """Signs ServiceAccount tokens."""
        return self.folder / "tokens.key"

    @property
    def tokens_public(self) -> Path:
        """Checks them."""
        return self.folder / "tokens.pub"

    def certificate(self, name: str) -> Path:
        """The certificate issued under this name."""
        return self.folder / f"{name}.crt"

    def key(self, name: str) -> Path:
        """Its key."""
        return self.folder / f"{name}.key"

    def create(self) -> None:
        """Make the authority and the key of ServiceAccount tokens."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._config.write_text(CONFIG)
        self._request(
            "ca",
            "/CN=perdure-ca",
            ["basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign,cRLSign,digitalSignature"],
        )
        self._openssl("genpkey", "-algorithm", "EC", *NEW_KEY[2:4], "-out", self.tokens_key)
        self._openssl("pkey", "-in", self.tokens_key, "-pubout", "-out", self.tokens_public)

    def issue(self, name: str, subject: str, addresses: Sequence[str] = ()) -> None:
        """Make a key and a certificate for both ends of a connection."""
        extensions = [
            "basicConstraints=critical,CA:FALSE",
            "keyUsage=critical,digitalSignature",
            "extendedKeyUsage=clientAuth,serverAuth",
            "authorityKeyIdentifier=keyid",
        ]
        if addresses:
            extensions.append(f"subjectAltName={','.join(addresses)}")
        self._request(name, subject, extensions, "-CA", self.authority, "-CAkey", self.authority_key)

    def kubeconfig(self, name: str, server: str) -> str:
        """A kubeconfig for the holder of that certificate."""
        user = {
            "client-certificate-data": _base64(self.certificate(name)),
            "client-key-data": _base64(self.key(name)),
        }
        return kubeconfig(name, server, self.authority, user)

    @property
    def _config(self) -> Path:
        return self.folder / "openssl.cnf"

    def _request(self, name: str, subject: str, extensions: Sequence[str], *more: str | Path) -> None:
        added = [word for extension in (*extensions, "subjectKeyIdentifier=hash") for word in ("-addext", extension)]
        files: list[str | Path] = ["-keyout", self.key(name), "-out", self.certificate(name)]
        self._openssl("req", "-x509", *NEW_KEY, *files, "-subj", subject, "-days", DAYS, *added, *more)

    def _openssl(self, *words: str | Path) -> None:
        config: list[str | Path] = ["-config", self._config] if words[0] == "req" else []
        argv: list[str | Path] = ["openssl", *words, *config]
        done = subprocess.run(argv, capture_output=True, text=True, umask=0o077, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"openssl {words[0]} failed: {done.stderr.strip()}")


def kubeconfig(name: str, server: str, authority: Path, user: dict[str, str]) -> str:
    """A kubeconfig with one user and one server; JSON is YAML too."""
    cluster = {"server": server, "certificate-authority-data": _base64(authority)}
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": name,
            "contexts": [{"name": name, "context": {"cluster": "cluster", "user": name}}],
            "clusters": [{"name": "cluster", "cluster": cluster}],
            "users": [{"name": name, "user": user}],
        },
        indent=2,
    )


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
