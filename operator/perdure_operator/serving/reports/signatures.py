"""Whether an issuer has signed a token of a pod, by the keys that it publishes: JSON Web Signatures (RFC 7515) with RSA
or P-256, the two that Kubernetes signs with. Pure.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode
from binascii import Error
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ec import (
    ECDSA,
    SECP256R1,
    EllipticCurvePublicKey,
    EllipticCurvePublicNumbers,
)
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey, RSAPublicNumbers
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256

from perdure_operator.cluster.protocol import Json

RSA_BITS: Final = 2048
"""A shorter key is not used."""
_P256_BYTES: Final = 32
"""Of each half of a signature."""

PublicKey = RSAPublicKey | EllipticCurvePublicKey


class Forged(Exception):
    """A token that names a known key, and that this key has not signed."""


@dataclass(frozen=True)
class Issuer:
    """Who signs tokens, and with which keys."""

    name: str
    """What its tokens have as `iss`."""
    keys: Mapping[str, PublicKey]
    """By their ids."""


def read_issuer(configuration: Json, published: Json) -> Issuer:
    """The issuer of an API server, by its OpenID configuration and its JSON Web Key Set; keys of other kinds are left
    out."""
    listed = published.get("keys")
    return Issuer(str(configuration.get("issuer") or ""), dict(_keys(listed if isinstance(listed, list) else [])))


def _keys(listed: list[Any]) -> Iterator[tuple[str, PublicKey]]:
    for one in listed:
        try:
            key = _key(one)
        except (KeyError, TypeError, ValueError):
            continue
        if key is not None and one.get("kid"):
            yield str(one["kid"]), key


def _key(one: Mapping[str, Any]) -> PublicKey | None:
    if one["kty"] == "RSA":
        key = RSAPublicNumbers(_number(one["e"]), _number(one["n"])).public_key()
        return key if key.key_size >= RSA_BITS else None
    if one["kty"] == "EC" and one["crv"] == "P-256":
        return EllipticCurvePublicNumbers(_number(one["x"]), _number(one["y"]), SECP256R1()).public_key()
    return None


def _number(text: str) -> int:
    return int.from_bytes(_bytes(text))


def key_id(token: str) -> str:
    """The id of the key that the token says it is signed with; "" if it says none."""
    try:
        return str(_json(token.split(".", 1)[0]).get("kid") or "")
    except ValueError:
        return ""


def signed_claims(token: str, issuer: Issuer) -> Json | None:
    """What the token says, if the issuer has signed it; None if it has another issuer, or a key or an algorithm that is
    not known. Raises Forged."""
    try:
        signed, _, signature = token.rpartition(".")
        head, body = map(_json, signed.split("."))
        mark = _bytes(signature)
    except ValueError:
        return None
    key = issuer.keys.get(str(head.get("kid") or ""))
    if key is None or not issuer.name or body.get("iss") != issuer.name:
        return None
    try:
        match key, head.get("alg"):
            case RSAPublicKey(), "RS256":
                key.verify(mark, signed.encode(), PKCS1v15(), SHA256())
            case EllipticCurvePublicKey(), "ES256" if len(mark) == 2 * _P256_BYTES:
                halves = (int.from_bytes(half) for half in (mark[:_P256_BYTES], mark[_P256_BYTES:]))
                key.verify(encode_dss_signature(*halves), signed.encode(), ECDSA(SHA256()))
            case _:
                return None
    except InvalidSignature:
        raise Forged from None
    return body


def _json(text: str) -> Json:
    """Raises ValueError for what is no object."""
    try:
        read: Any = json.loads(_bytes(text))
    except RecursionError as error:
        raise ValueError(error) from None
    if not isinstance(read, dict):
        raise ValueError("no object")
    return read


def _bytes(text: str) -> bytes:
    try:
        return urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except Error as error:
        raise ValueError(error) from None
