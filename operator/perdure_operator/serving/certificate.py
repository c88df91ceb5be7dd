"""A server's TLS context: from the files of a mounted Secret, or with a certificate that this process makes itself, or
with one that the operator keeps. Makes certificates and their keys.

A key that comes from no file is in no file: OpenSSL reads it from an anonymous one. Each kind is renewed while the
process runs. Used by `connections`, and by `loop.keys`.
"""

from __future__ import annotations

import logging
import os
import secrets
import ssl
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Protocol

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from perdure.errors import UserError

LIFE: Final = timedelta(days=90)
BACKDATED: Final = timedelta(hours=1)
"""A scraper's clock may be behind ours."""
LOOK_SECONDS: Final = 60.0
"""A Secret's files are looked at this often at most."""
BEGINS: Final = datetime(2020, 1, 1, tzinfo=UTC)
"""Of certificates that the operator keeps: no clock of a member is that far behind, and how old one is says nothing."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Pair:
    """A certificate and its private key, both PEM."""

    certificate: str
    key: str = field(repr=False)


class Contexts(Protocol):
    """A source of TLS contexts."""

    def current(self) -> ssl.SSLContext:
        """The context for the next connection. Raises nothing."""


class SelfMade:
    """A certificate for these names, signed by its own key. A new one replaces it when half of its life is over."""

    def __init__(self, names: Sequence[str], *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._names = tuple(names)
        self._now = now
        self._make()

    def current(self) -> ssl.SSLContext:
        """See Contexts."""
        if self._now() >= self._renew_at:
            self._make()
        return self._context

    def _make(self) -> None:
        now = self._now()
        self._context = _context(*make(self._names, now))
        self._renew_at = now + LIFE / 2


class FromFiles:
    """tls.crt and tls.key of a folder, read again when the kubelet has changed them."""

    def __init__(self, folder: Path, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Raises UserError if they cannot be used."""
        self._folder = folder
        self._monotonic = monotonic
        try:
            self._context, self._state = self._read(), self._stat()
        except (OSError, ValueError) as error:
            raise UserError(f"{folder}: tls.crt and tls.key are no usable certificate: {error}") from None
        self._looked = monotonic()

    def current(self) -> ssl.SSLContext:
        """See Contexts. Files that cannot be used change nothing, and are a line in the log."""
        now = self._monotonic()
        if now - self._looked >= LOOK_SECONDS:
            self._looked = now
            self._look()
        return self._context

    def _look(self) -> None:
        try:
            state = self._stat()
            if state != self._state:
                self._state = state  # a wrong pair is reported once
                self._context = self._read()
        except (OSError, ValueError) as error:
            words = "%s: the new tls.crt and tls.key cannot be used, so the certificate before is kept: %s"
            logger.warning(words, self._folder, error)

    def _stat(self) -> tuple[int, ...]:
        found = [(self._folder / name).stat() for name in ("tls.crt", "tls.key")]
        return tuple(part for one in found for part in (one.st_mtime_ns, one.st_ino, one.st_size))

    def _read(self) -> ssl.SSLContext:
        return _loaded(str(self._folder / "tls.crt"), str(self._folder / "tls.key"))


class Given:
    """The certificate and key that were given last."""

    def __init__(self, certificate: str, key: str) -> None:
        """Raises ValueError or SSLError if they are no pair, and OSError for a fault of this machine."""
        self.give(certificate, key)

    def give(self, certificate: str, key: str) -> None:
        """Use these from the next connection on. Raises as above."""
        self._context = _context(certificate.encode(), key.encode())

    def current(self) -> ssl.SSLContext:
        """See Contexts."""
        return self._context


class Maker:
    """Makes authorities of the operator's own, and what they sign."""

    def name(self) -> str:
        """Random: two authorities with one name would be hard to tell apart for a client."""
        return f"perdure-{secrets.token_hex(8)}"

    def authority(self, name: str, ends: datetime) -> Pair:
        """One that signs certificates of servers, and no other authority."""
        key = ec.generate_private_key(ec.SECP256R1())
        usage = _usage(signs_certificates=True)
        built = (
            _builder(_called(name), _called(name), key, ends)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .sign(key, hashes.SHA256())
        )
        return _pair(built, key)

    def signed(self, host: str, ends: datetime, authority: Pair) -> Pair:
        """A certificate for the server of that name. Raises ValueError if the authority cannot be used."""
        issuer = x509.load_pem_x509_certificate(authority.certificate.encode())
        try:
            issuer_key = serialization.load_pem_private_key(authority.key.encode(), None)
        except TypeError:  # it has a password
            issuer_key = None
        if not isinstance(issuer_key, ec.EllipticCurvePrivateKey) or issuer_key.public_key() != issuer.public_key():
            raise ValueError("the authority's key is not one that the operator has made")
        key = ec.generate_private_key(ec.SECP256R1())
        built = (
            _builder(_called("perdure-operator"), issuer.subject, key, ends)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
            .sign(issuer_key, hashes.SHA256())
        )
        return _pair(built, key)


def make(names: Sequence[str], now: datetime) -> tuple[bytes, bytes]:
    """A certificate and its key, both PEM, valid for LIFE from `now`."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "perdure-operator")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + LIFE)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM), _private(key)


def _called(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, ends: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(BEGINS)
        .not_valid_after(ends)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    return Pair(certificate.public_bytes(serialization.Encoding.PEM).decode(), _private(key).decode())


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _context(certificate: bytes, key: bytes) -> ssl.SSLContext:
    with ExitStack() as files:
        paths = []
        for content in (certificate, key):
            fd = os.memfd_create("perdure-serving")
            files.callback(os.close, fd)
            os.write(fd, content)
            paths.append(f"/proc/self/fd/{fd}")
        return _loaded(*paths)


def _loaded(certificate: str, key: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, key, password=_no_password)
    return context


def _no_password() -> str:
    """OpenSSL would ask on the terminal for the password of an encrypted key."""
    raise ValueError("the key is encrypted: give one without a password")
