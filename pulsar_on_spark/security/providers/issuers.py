"""The provider `openid`, which requests the keys of issuers and keeps them for a day.

All logins of one issuer share one fetch at a time. A fetch makes two requests. It follows no redirect, uses no proxy
settings, and each answer must have at most `MAX_ANSWER_BYTES` and be complete in `ANSWER_S`.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Callable
from typing import Final, Protocol

import httpx

from pulsar_on_spark.security.evidence import Evidence, Failure, NotAuthenticatedError
from pulsar_on_spark.security.principal import Principal
from pulsar_on_spark.security.providers.openid import (
    EXPIRY_S,
    RETRY_S,
    Fetch,
    IssuerError,
    KnownKeys,
    OpenIdRules,
    keys_of,
    keys_url_of,
    metadata_url,
    next_fetch,
)
from pulsar_on_spark.security.providers.token import issuer_of, key_name_of

log = logging.getLogger(__name__)

ANSWER_S: Final = 10.0
MAX_ANSWER_BYTES: Final = 1 << 20


class Get(Protocol):
    """A function that requests a URL."""

    async def __call__(self, url: str) -> bytes:
        """Return the body of the answer to GET.

        Raises:
            IssuerError: there is no usable answer.
        """


class HttpGet:
    """HTTP client that sends GET requests, with the limits of this module.

    Args:
        trust: The CAs to trust for issuers.
    """

    def __init__(self, trust: ssl.SSLContext) -> None:
        self._trust = trust

    async def __call__(self, url: str) -> bytes:
        """Return the body of the answer to GET.

        Raises:
            IssuerError: the answer's status is not 200, or the answer is too long or too late.
        """
        try:
            async with (
                asyncio.timeout(ANSWER_S),
                httpx.AsyncClient(verify=self._trust, trust_env=False, follow_redirects=False, timeout=None) as client,
                client.stream("GET", url, headers={"Accept-Encoding": "identity"}) as answer,
            ):
                if answer.status_code != 200:
                    raise IssuerError(f"{url} answers with status {answer.status_code}")
                body = bytearray()
                async for chunk in answer.aiter_raw():
                    body += chunk
                    if len(body) > MAX_ANSWER_BYTES:
                        raise IssuerError(f"{url} answers with more than {MAX_ANSWER_BYTES} bytes")
                return bytes(body)
        except TimeoutError:
            raise IssuerError(f"{url} does not answer in {ANSWER_S:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise IssuerError(f"{url} cannot be requested ({error or type(error).__name__})") from error


class _Issuer:
    """The keys of one issuer.

    Args:
        name: The issuer, as its tokens name it (`iss`).
        rules: The rules for accepted tokens.
        get: Requests a URL.
        clock: Returns the monotonic time, in seconds.
    """

    def __init__(self, name: str, rules: OpenIdRules, get: Get, clock: Callable[[], float]) -> None:
        self._name = name
        self._rules = rules
        self._get = get
        self._clock = clock
        self._known: KnownKeys | None = None
        self._failed_s: float | None = None
        self._fetching: asyncio.Task[None] | None = None

    async def keys_for(self, key_name: str) -> KnownKeys:
        """Return the issuer's keys to check a token with; they may lack the key `key_name` that the token names.

        Raises:
            NotAuthenticatedError: the issuer has given no usable keys.
        """
        fetch = next_fetch(self._known, key_name, self._clock())
        if fetch is not Fetch.NONE and not self._is_pausing:
            fetching = self._fetching = self._fetching or asyncio.create_task(self._fetch(), name="keys of an issuer")
            if fetch is Fetch.FIRST:
                await asyncio.shield(fetching)
        known = self._known
        if known is None or self._clock() - known.fetched_s >= EXPIRY_S:
            raise NotAuthenticatedError(Failure.UNAVAILABLE, f"the issuer {self._name} gives no keys")
        return known

    @property
    def _is_pausing(self) -> bool:
        return self._failed_s is not None and self._clock() - self._failed_s < RETRY_S

    async def _fetch(self) -> None:
        try:
            metadata = await self._get(metadata_url(self._name))
            url = keys_url_of(metadata, self._name, requires_https=self._rules.requires_https)
            self._known = KnownKeys(keys_of(await self._get(url)), self._clock())
            self._failed_s = None
        except IssuerError as error:
            self._failed_s = self._clock()
            log.warning("The keys of the issuer %s cannot be fetched: %s.", self._name, str(error).rstrip("."))
        finally:
            self._fetching = None


class OpenIdProvider:
    """Authentication by the tokens of OpenID issuers.

    Args:
        rules: The rules for accepted tokens.
        get: Requests a URL.
        clock: Returns the time, in seconds since 1970.
        growing: Returns the monotonic time, in seconds.
    """

    name = "AuthenticationProviderOpenID"
    method = "token"

    def __init__(
        self,
        rules: OpenIdRules,
        get: Get,
        clock: Callable[[], float] = time.time,
        growing: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rules = rules
        self._clock = clock
        self._issuers = {name: _Issuer(name, rules, get, growing) for name in rules.issuers}

    async def authenticate(self, evidence: Evidence) -> Principal:
        """Check a token with the keys of its issuer, and return the client's identity.

        Raises:
            NotAuthenticatedError: the token is invalid, or its issuer is not listed or does not answer.
        """
        token = evidence.data
        issuer = self._issuers.get(issuer_of(token))
        if issuer is None:
            raise NotAuthenticatedError(Failure.ISSUER, "the settings do not list the token's issuer")
        known = await issuer.keys_for(key_name_of(token))
        return self._rules.principal_of(token, known.keys, self._clock())
