"""The authentication that a broker's settings choose."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from pulsar_on_spark.broker.runtime.settings import BrokerSettings
from pulsar_on_spark.model.errors import InvalidArgumentError, PulsarpyError
from pulsar_on_spark.security import keys
from pulsar_on_spark.security.authentication import Authentication, Proxies
from pulsar_on_spark.security.evidence import Provider
from pulsar_on_spark.security.files import path_of, read_given
from pulsar_on_spark.security.providers.basic import BasicProvider, Users
from pulsar_on_spark.security.providers.certificate import CertificateProvider
from pulsar_on_spark.security.providers.issuers import HttpGet, OpenIdProvider
from pulsar_on_spark.security.providers.openid import OpenIdRules, is_usable
from pulsar_on_spark.security.providers.plugged import GROUP, PluggedProvider, is_installed
from pulsar_on_spark.security.providers.token import TokenProvider, TokenRules
from pulsar_on_spark.security.tls import client_context, stamps_of

log = logging.getLogger(__name__)

_CLASS_PREFIX: Final = "AuthenticationProvider"
_BASIC: Final = "Setting basic_auth_conf"


def authentication_of(settings: BrokerSettings) -> Authentication | None:
    """Create the authentication that a broker's settings choose; None if `authentication_enabled` is false.

    Raises:
        InvalidArgumentError: settings are missing, invalid or contradict each other.
    """
    if not settings.authentication_enabled:
        return None
    providers = list(_providers(settings))
    if not providers:
        raise InvalidArgumentError(
            "Setting authentication_enabled needs authentication_providers: give token, openid, basic, tls or "
            "several of them."
        )
    if settings.anonymous_user_role in settings.proxy_roles:
        raise InvalidArgumentError(
            "Setting anonymous_user_role is one of proxy_roles, so any client could speak for any other: give another "
            "role."
        )
    return Authentication(
        providers,
        settings.anonymous_user_role or None,
        settings.strict_auth_method,
        Proxies(frozenset(settings.proxy_roles), settings.authenticate_original_auth_data),
    )


def _providers(settings: BrokerSettings) -> Iterator[Provider]:
    seen = set()
    for given in filter(None, settings.authentication_providers):
        name = _short(given)
        if name in seen:
            raise InvalidArgumentError(f"Setting authentication_providers has {given!r} twice: leave one out.")
        seen.add(name)
        make = _MAKERS.get(name)
        if make is not None:
            yield make(settings)
        elif is_installed(given):
            yield PluggedProvider(given, settings.model_dump())
        else:
            raise InvalidArgumentError(_unsupported(given, name))


def _short(given: str) -> str:
    """Return the short name of a provider, as in `_MAKERS`; for a Pulsar class, its name without the common prefix."""
    return given.rpartition(".")[2].removeprefix(_CLASS_PREFIX).lower()


def _unsupported(given: str, name: str) -> str:
    if name in _OTHERS:
        return (
            f"Setting authentication_providers has {given!r}, and {_OTHERS[name]} is not built in: give token, openid, "
            f"basic or tls, or install a plug-in (entry point group {GROUP}) and give its name."
        )
    return (
        f"Setting authentication_providers has {given!r}, which is not supported: give token, openid, basic, tls or an "
        f"installed entry point of the group {GROUP}."
    )


def _token(settings: BrokerSettings) -> Provider:
    secret, public = settings.token_secret_key.get_secret_value(), settings.token_public_key
    if bool(secret) == bool(public):
        raise InvalidArgumentError(
            "Authentication by token needs a key: set either token_secret_key or token_public_key, not both."
        )
    if secret:
        what = "Setting token_secret_key"
        key = keys.secret_key(read_given(secret, what, secret=True), what)
    else:
        what = "Setting token_public_key"
        key = keys.public_key(read_given(public, what, secret=False), what)
    if bool(settings.token_audience_claim) != bool(settings.token_audience):
        raise InvalidArgumentError(
            "Settings token_audience_claim and token_audience belong together: set both, or neither."
        )
    rules = TokenRules(
        settings.token_auth_claim,
        settings.token_audience_claim,
        frozenset((settings.token_audience,)),
        settings.token_allowed_clock_skew_seconds,
    )
    has_openid = _OPENID in map(_short, settings.authentication_providers)
    issuers = _given(settings.open_id_allowed_token_issuers) if has_openid else frozenset()
    return TokenProvider(key, rules, time.time, issuers)


def _openid(settings: BrokerSettings) -> Provider:
    issuers, audiences = map(_given, (settings.open_id_allowed_token_issuers, settings.open_id_allowed_audiences))
    if not issuers or not audiences:
        raise InvalidArgumentError(
            "Authentication by openid needs issuers and audiences: set open_id_allowed_token_issuers and "
            "open_id_allowed_audiences."
        )
    for issuer in issuers:
        if not is_usable(issuer, requires_https=settings.open_id_require_issuers_use_https):
            raise InvalidArgumentError(
                f"Setting open_id_allowed_token_issuers has {issuer!r}, which is not an https URL: correct it, or for "
                "tests set open_id_require_issuers_use_https to false."
            )
    rules = OpenIdRules.of(
        issuers,
        audiences,
        role_claim=settings.open_id_role_claim,
        leeway_s=settings.open_id_accepted_time_leeway_seconds,
        requires_https=settings.open_id_require_issuers_use_https,
    )
    trust = settings.open_id_token_issuer_trust_certs_file_path
    context = client_context(Path(trust) if trust else None, allow_insecure=False, verify_hostname=True)
    return OpenIdProvider(rules, HttpGet(context))


def _given(names: Iterable[str]) -> frozenset[str]:
    return frozenset(filter(None, names))


def _basic(settings: BrokerSettings) -> Provider:
    given = settings.basic_auth_conf.get_secret_value()
    if not given:
        raise InvalidArgumentError("Authentication by user and password needs basic_auth_conf: set it to a file.")
    return BasicProvider(_UsersFile(given).read)


def _tls(settings: BrokerSettings) -> Provider:
    has_port = settings.broker_service_port_tls is not None or settings.web_service_port_tls is not None
    if not has_port or not settings.tls_trust_certs_file_path or settings.tls_allow_insecure_connection:
        raise InvalidArgumentError(
            "Authentication by client certificates needs a port with TLS and the CAs of the certificates: set "
            "broker_service_port_tls and tls_trust_certs_file_path, and leave tls_allow_insecure_connection out."
        )
    return CertificateProvider()


_OPENID: Final = "openid"
_MAKERS: Final[dict[str, Callable[[BrokerSettings], Provider]]] = {
    "token": _token,
    _OPENID: _openid,
    "basic": _basic,
    "tls": _tls,
}
_OTHERS: Final = {"sasl": "SASL (Kerberos)", "kerberos": "SASL (Kerberos)", "athenz": "Athenz"}
"""Providers of Pulsar that are not built in."""


class _UsersFile:
    """The users of setting `basic_auth_conf`; its file is read again after it was replaced.

    Raises:
        InvalidArgumentError: the file cannot be used.
    """

    def __init__(self, given: str) -> None:
        self._given = given
        self._file = path_of(given)
        self._stamps = stamps_of([self._file])
        self._users = Users.parse(read_given(given, _BASIC, secret=True), _BASIC)

    def read(self) -> Users:
        """Return the users; if a replaced file cannot be used, log an error and return the users read before."""
        stamps = stamps_of([self._file])
        if stamps != self._stamps:
            self._stamps = stamps
            try:
                self._users = Users.parse(read_given(self._given, _BASIC, secret=True), _BASIC)
                log.info("The file of basic_auth_conf was replaced, and its users are in use.")
            except (PulsarpyError, OSError) as error:
                log.error(
                    "The file of basic_auth_conf was replaced and cannot be used, so the former users stay in use: %s",
                    error,
                )
        return self._users
