"""Keys of tokens, and the algorithms of each kind of key.

Private and public keys are in DER, as `pulsar tokens` writes them, or in PEM; keys of OpenID issuers are JWKs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from pulsar_on_spark.model.errors import InvalidArgumentError

MIN_SECRET_BYTES: Final = 32
"""Minimum length of a secret key in bytes: the length of HS256's digest. A shorter key could be guessed."""
MIN_RSA_BITS: Final = 2048
HMAC_ALGORITHMS: Final = ("HS256", "HS384", "HS512")
RSA_ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_CURVES: Final = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
_JWK_KINDS: Final[Mapping[str, Callable[[dict[str, Any]], Any]]] = {
    "RSA": RSAAlgorithm.from_jwk,
    "EC": ECAlgorithm.from_jwk,
}
_PEM: Final = b"-----BEGIN"

PublicKey = rsa.RSAPublicKey | ec.EllipticCurvePublicKey
PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey


@dataclass(frozen=True, slots=True)
class TokenKey:
    """A key that signs or verifies tokens.

    Attributes:
        algorithms: The algorithms of this kind of key; the first one is the default.
        material: The key itself.
    """

    algorithms: tuple[str, ...]
    material: bytes | PublicKey | PrivateKey = field(repr=False)


def secret_key(content: bytes, what: str) -> TokenKey:
    """Return the secret key of tokens with these bytes.

    Args:
        content: The bytes of the key.
        what: The name of the key, for errors, such as "Setting token_secret_key".

    Raises:
        InvalidArgumentError: the content is too short, or a key of another kind.
    """
    if content.startswith(_PEM):
        raise InvalidArgumentError(
            f"{what} is a PEM file: give a secret key as raw bytes, or name the file as a public key."
        )
    if len(content) < MIN_SECRET_BYTES:
        raise InvalidArgumentError(
            f"{what} has {len(content)} bytes, but a secret key needs {MIN_SECRET_BYTES}: make one by `pulsarpy tokens "
            "create-secret-key`."
        )
    return TokenKey(HMAC_ALGORITHMS, content)


def public_key(content: bytes, what: str) -> TokenKey:
    """Return the public key of tokens in DER or PEM form (arguments as `secret_key`).

    Raises:
        InvalidArgumentError: the content is neither an RSA key of at least 2,048 bits nor an EC key on P-256, P-384 or
            P-521.
    """
    try:
        if content.startswith(_PEM):
            key = serialization.load_pem_public_key(content)
        else:
            key = serialization.load_der_public_key(content)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InvalidArgumentError(f"{what} is not a public key in DER or PEM: give another.") from error
    return TokenKey(_algorithms_of(key, what), key)  # type: ignore[arg-type]


def private_key(content: bytes, what: str) -> TokenKey:
    """Return the private key of tokens in DER or PEM form (arguments and errors as `public_key`)."""
    try:
        if content.startswith(_PEM):
            key = serialization.load_pem_private_key(content, None)
        else:
            key = serialization.load_der_private_key(content, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise InvalidArgumentError(
            f"{what} is not a private key in PKCS#8, DER or PEM, without a password: give another."
        ) from error
    return TokenKey(_algorithms_of(key, what), key)  # type: ignore[arg-type]


def issuer_key(jwk: Mapping[str, Any]) -> TokenKey | None:
    """Return the public key in a JWK; None unless the JWK is a public RSA or EC key for signatures.

    The algorithms are RS256, RS384 and RS512, or the ES algorithm of the curve, as in Pulsar. The result is None, too,
    if the JWK names another algorithm.
    """
    read = _JWK_KINDS.get(str(jwk.get("kty")))
    if read is None or "d" in jwk or jwk.get("use", "sig") != "sig":
        return None
    try:
        key = read(dict(jwk))
        algorithms = [algorithm for algorithm in _algorithms_of(key, "It") if not algorithm.startswith("PS")]
    except (jwt.PyJWTError, InvalidArgumentError, ValueError, TypeError):
        return None
    named = jwk.get("alg")
    if named is not None:
        algorithms = [algorithm for algorithm in algorithms if algorithm == named]
    return TokenKey(tuple(algorithms), key) if algorithms else None


def _algorithms_of(key: object, what: str) -> tuple[str, ...]:
    if isinstance(key, rsa.RSAPublicKey | rsa.RSAPrivateKey):
        if key.key_size < MIN_RSA_BITS:
            raise InvalidArgumentError(
                f"{what} is an RSA key of {key.key_size} bits: give one of {MIN_RSA_BITS} bits or more."
            )
        return RSA_ALGORITHMS
    if isinstance(key, ec.EllipticCurvePublicKey | ec.EllipticCurvePrivateKey) and key.curve.name in _CURVES:
        return (_CURVES[key.curve.name],)
    raise InvalidArgumentError(f"{what} is neither an RSA key nor an EC key on P-256, P-384 or P-521: give another.")
