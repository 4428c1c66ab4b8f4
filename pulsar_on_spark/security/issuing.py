"""Creation of keys and tokens, the counterpart of `providers.token`, for the command line and tests.

The files have the formats of `pulsar tokens`: secret keys are raw bytes, private keys PKCS#8 in DER, and public keys
X.509 in DER.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any, Final, cast

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.security.keys import RSA_ALGORITHMS, PrivateKey, TokenKey

SECRET_BYTES: Final = {"HS256": 32, "HS384": 48, "HS512": 64}
"""Length of a secret key in bytes, by its algorithm."""
_CURVES: Final = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}
PAIR_ALGORITHMS: Final = (*RSA_ALGORITHMS, *_CURVES)
_RSA_BITS: Final = 2048


def new_secret(algorithm: str) -> bytes:
    """Return the bytes of a new random secret key, as long as the algorithm needs (`SECRET_BYTES`).

    Raises:
        InvalidArgumentError: the algorithm has no secret key.
    """
    if algorithm not in SECRET_BYTES:
        raise InvalidArgumentError(f"Algorithm {algorithm!r} has no secret key: give one of {', '.join(SECRET_BYTES)}.")
    return secrets.token_bytes(SECRET_BYTES[algorithm])


def new_pair(algorithm: str) -> tuple[bytes, bytes]:
    """Return a new private key and its public key, both as DER: PKCS#8 and X.509.

    Raises:
        InvalidArgumentError: the algorithm has no pair of keys.
    """
    made: PrivateKey
    if algorithm in _CURVES:
        made = ec.generate_private_key(_CURVES[algorithm])
    elif algorithm in RSA_ALGORITHMS:
        made = rsa.generate_private_key(65537, _RSA_BITS)
    else:
        raise InvalidArgumentError(
            f"Algorithm {algorithm!r} has no pair of keys: give one of {', '.join(PAIR_ALGORITHMS)}."
        )
    private = made.private_bytes(
        serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = made.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return private, public


def sign(
    key: TokenKey, claims: Mapping[str, Any], algorithm: str | None = None, headers: Mapping[str, str] | None = None
) -> str:
    """Return a signed token (a JWT in compact form).

    Args:
        key: A secret or private key.
        claims: The claims.
        algorithm: One of the key's algorithms; None for the first one.
        headers: Headers to add besides `alg`; None for none.

    Raises:
        InvalidArgumentError: the algorithm does not fit the key.
    """
    chosen = algorithm or key.algorithms[0]
    if chosen not in key.algorithms:
        raise InvalidArgumentError(
            f"Algorithm {chosen!r} does not fit the key: give one of {', '.join(key.algorithms)}, or leave it out."
        )
    return jwt.encode(dict(claims), cast(Any, key.material), chosen, headers=dict(headers or {}))
