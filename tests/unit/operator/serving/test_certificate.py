"""TLS contexts by what a real client sees in a handshake."""

from __future__ import annotations

import ssl
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from perdure.errors import UserError
from perdure_operator.serving.certificate import LIFE, LOOK_SECONDS, Contexts, FromFiles, SelfMade, make


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
