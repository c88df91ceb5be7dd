"""TLS contexts by what a real client sees in a handshake."""

from __future__ import annotations

import ssl
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from perdure.errors import UserError
from perdure_operator.serving.certificate import (
    LIFE,
    LOOK_SECONDS,
    Contexts,
    FromFiles,
    Given,
    Maker,
    Pair,
    SelfMade,
    make,
)


def seen(contexts: Contexts) -> bytes:
    """The certificate that a client gets, DER: a handshake in memory."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    client = trusting.wrap_bio(to_client, to_server)
    server = contexts.current().wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    der = client.getpeercert(binary_form=True)
    assert der is not None
    return der


def write(folder: Path, pair: tuple[bytes, bytes]) -> None:
    """As the kubelet changes a mounted Secret: other files under the same names."""
    for name, content in zip(("tls.crt", "tls.key"), pair, strict=True):
        new = folder / f".{name}"
        new.write_bytes(content)
        new.replace(folder / name)


def der(pair: tuple[bytes, bytes]) -> bytes:
    return ssl.PEM_cert_to_DER_cert(pair[0].decode())


def test_a_certificate_of_its_own_is_for_its_names_and_valid_now() -> None:
    certificate = x509.load_der_x509_certificate(seen(SelfMade(["perdure-0", "localhost"])))
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["perdure-0", "localhost"]
    assert certificate.not_valid_before_utc < datetime.now(UTC) < certificate.not_valid_after_utc


def test_it_leaves_no_file_and_no_open_file_behind() -> None:
    kept = SelfMade(["localhost"])
    names = []
    for one in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # iterdir's own
            names.append(str(one.readlink()))
    assert kept.current()
    assert names
    assert not [name for name in names if "perdure-serving" in name]


def test_it_is_renewed_when_half_of_its_life_is_over() -> None:
    start = now = datetime.now(UTC)
    contexts = SelfMade(["localhost"], now=lambda: now)
    first = seen(contexts)
    now = start + LIFE / 2 - timedelta(seconds=1)
    assert seen(contexts) == first
    now = start + LIFE / 2
    assert seen(contexts) != first


def test_changed_files_are_used_after_a_minute(tmp_path: Path) -> None:
    now, first, second = 100.0, make(["a"], datetime.now(UTC)), make(["b"], datetime.now(UTC))
    write(tmp_path, first)
    contexts = FromFiles(tmp_path, monotonic=lambda: now)
    write(tmp_path, second)
    assert seen(contexts) == der(first)
    now += LOOK_SECONDS
    assert seen(contexts) == der(second)


@pytest.mark.parametrize("broken", ["other key", "nothing", "no file"])
def test_files_that_cannot_be_used_leave_the_certificate_before_and_a_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, broken: str
) -> None:
    now, first, second = 100.0, make(["a"], datetime.now(UTC)), make(["b"], datetime.now(UTC))
    write(tmp_path, first)
    contexts = FromFiles(tmp_path, monotonic=lambda: now)
    match broken:
        case "other key":
            write(tmp_path, (second[0], first[1]))
        case "nothing":
            write(tmp_path, (b"", b""))
        case _:
            (tmp_path / "tls.key").unlink()
    now += LOOK_SECONDS
    assert seen(contexts) == der(first)
    assert str(tmp_path) in caplog.text
    write(tmp_path, second)
    now += LOOK_SECONDS
    assert seen(contexts) == der(second)


def test_a_start_with_files_that_cannot_be_used_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"{tmp_path}: tls.crt and tls.key"):
        FromFiles(tmp_path)


HOST = "perdure-operator-reports.perdure-system.svc"


def checked(contexts: Contexts, bundle: str, host: str = HOST, *, strict: bool = False) -> None:
    """A handshake of a client that trusts this bundle alone. Raises SSLError if the server is another."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.load_verify_locations(cadata=bundle)
    if strict:
        trusting.verify_flags |= ssl.VERIFY_X509_STRICT
    client = trusting.wrap_bio(to_client, to_server, server_hostname=host)
    server = contexts.current().wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for side in (client, server):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()


def signed_by(authority: Pair, host: str = HOST, ends: datetime | None = None) -> Given:
    pair = Maker().signed(host, ends or datetime.now(UTC) + timedelta(days=1), authority)
    return Given(pair.certificate, pair.key)


def new_authority(ends: datetime | None = None) -> Pair:
    return Maker().authority(Maker().name(), ends or datetime.now(UTC) + timedelta(days=1))


@pytest.mark.parametrize("strict", [False, True], ids=["as members check", "as later Pythons check"])
def test_a_server_is_known_by_the_authority_that_signed_its_certificate_and_by_no_other(*, strict: bool) -> None:
    old, new = new_authority(), new_authority()
    for one in (old, new):
        checked(signed_by(one), old.certificate + new.certificate, strict=strict)
    checked(signed_by(old), old.certificate, strict=strict)
    with pytest.raises(ssl.SSLCertVerificationError, match=r"self-signed certificate|local issuer"):
        checked(signed_by(new), old.certificate)
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        checked(signed_by(old, "elsewhere.svc"), old.certificate)


def test_a_certificate_and_an_authority_end_when_they_should() -> None:
    past, authority = datetime.now(UTC) - timedelta(seconds=2), new_authority()
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        checked(signed_by(authority, ends=past), authority.certificate)
    ended = new_authority(past)
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        checked(signed_by(ended), ended.certificate)


def test_a_certificate_of_a_server_signs_nothing() -> None:
    authority = new_authority()
    server = Maker().signed(HOST, datetime.now(UTC) + timedelta(days=1), authority)
    forged = Maker().signed(HOST, datetime.now(UTC) + timedelta(days=1), server)
    with pytest.raises(ssl.SSLCertVerificationError):
        checked(Given(forged.certificate + server.certificate, forged.key), authority.certificate)


def test_a_pair_that_is_none_leaves_the_one_before() -> None:
    authority = new_authority()
    given = signed_by(authority)
    first, other = seen(given), new_authority()
    for certificate, key in ((other.certificate, authority.key), ("", ""), (other.certificate, "no key")):
        with pytest.raises((ValueError, OSError)):
            given.give(certificate, key)
        assert seen(given) == first
    given.give(other.certificate, other.key)
    assert seen(given) == ssl.PEM_cert_to_DER_cert(other.certificate)


@pytest.mark.parametrize("which", ["another authority's", "nothing", "with a password", "of another kind"])
def test_an_authority_with_a_wrong_key_signs_nothing(which: str) -> None:
    authority, other = new_authority(), new_authority()
    locked = serialization.load_pem_private_key(authority.key.encode(), None).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"x")
    )
    pkcs8 = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    keys = {
        "another authority's": other.key,
        "nothing": "",
        "with a password": locked.decode(),
        "of another kind": ed25519.Ed25519PrivateKey.generate().private_bytes(*pkcs8).decode(),
    }
    with pytest.raises(ValueError):  # noqa: PT011 - cryptography's own, or ours
        signed_by(Pair(authority.certificate, keys[which]))


def test_a_pair_shows_no_key() -> None:
    authority = new_authority()
    assert authority.key.splitlines()[1] not in repr(authority)
