"""Whose signature a token has: only that of a published key of the issuer, over what the token says."""

from __future__ import annotations

from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, SECP384R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key as generate_rsa

from perdure_operator.serving.reports.published_keys import CONFIGURATION_PATH, KEYS_PATH
from perdure_operator.serving.reports.signatures import Forged, Issuer, key_id, read_issuer, signed_claims
from tests.support.reporting import ISSUER, SigningKey, published

RSA = SigningKey("rsa", generate_rsa(65537, 2048))
P256 = SigningKey("ec", generate_private_key(SECP256R1()))
SHORT = SigningKey("short", generate_rsa(65537, 1024))  # noqa: S505 - what is tested
CLAIMS = {"iss": ISSUER, "sub": "someone"}


def issuer(*keys: SigningKey, name: str = ISSUER) -> Issuer:
    said = published(*keys, issuer=name)
    return read_issuer(said[CONFIGURATION_PATH], said[KEYS_PATH])


@pytest.mark.parametrize("key", [RSA, P256], ids=lambda key: key.id)
def test_what_the_issuer_has_signed_is_read(key: SigningKey) -> None:
    assert signed_claims(key.sign(CLAIMS), issuer(RSA, P256)) == CLAIMS
    assert key_id(key.sign(CLAIMS)) == key.id


@pytest.mark.parametrize("key", [RSA, P256], ids=lambda key: key.id)
def test_what_was_changed_or_signed_by_another_is_forged(key: SigningKey) -> None:
    head, _, signature = key.sign(CLAIMS).split(".")
    _, other, _ = key.sign({**CLAIMS, "sub": "another"}).split(".")
    stranger = SigningKey(key.id, generate_rsa(65537, 2048) if key is RSA else generate_private_key(SECP256R1()))
    for given in (f"{head}.{other}.{signature}", stranger.sign(CLAIMS)):
        with pytest.raises(Forged):
            signed_claims(given, issuer(RSA, P256))


@pytest.mark.parametrize(
    "given",
    [
        pytest.param(RSA.sign(CLAIMS, kid="other"), id="an unknown key"),
        pytest.param(RSA.sign(CLAIMS, kid=""), id="no key"),
        pytest.param(RSA.sign({**CLAIMS, "iss": "https://elsewhere"}), id="another issuer"),
        pytest.param(RSA.sign({"sub": "someone"}), id="no issuer"),
        pytest.param(RSA.sign(CLAIMS, alg="none"), id="no algorithm"),
        pytest.param(RSA.sign(CLAIMS, alg="HS256"), id="a secret for all"),
        pytest.param(RSA.sign(CLAIMS, kid="ec"), id="another kind of key"),
        pytest.param(P256.sign(CLAIMS).rpartition(".")[0] + ".", id="no signature"),
        pytest.param("", id="nothing"),
        pytest.param("a.b", id="two parts"),
        pytest.param(RSA.sign(CLAIMS) + ".e30", id="four parts"),
        pytest.param("[[[.e30.e30", id="no JSON"),
        pytest.param("W10.W10.W10", id="no object"),
        pytest.param("W1tb" * 30_000 + ".e30.e30", id="deep"),
        pytest.param("\ud800.\u2603.e30", id="no ASCII"),
    ],
)
def test_of_other_tokens_nothing_is_known(given: str) -> None:
    assert signed_claims(given, issuer(RSA, P256)) is None


def test_without_the_issuers_name_nothing_is_known() -> None:
    assert signed_claims(RSA.sign({**CLAIMS, "iss": ""}), issuer(RSA, name="")) is None


def test_keys_of_other_kinds_and_short_ones_are_left_out() -> None:
    p384 = generate_private_key(SECP384R1()).public_key().public_numbers()
    odd: list[Any] = [
        None,
        {},
        {"kty": "OKP", "kid": "ed", "crv": "Ed25519", "x": "AA"},
        {"kty": "EC", "kid": "p384", "crv": "P-384", "x": str(p384.x), "y": str(p384.y)},
        {**P256.published, "kid": "off the curve", "y": P256.published["x"]},
        {**RSA.published, "kid": "no modulus", "n": 5},
        {**RSA.published, "kid": ""},
        SHORT.published,
        RSA.published,
    ]
    assert list(read_issuer({"issuer": ISSUER}, {"keys": odd}).keys) == ["rsa"]
    assert read_issuer({}, {"keys": None}) == Issuer("", {})
