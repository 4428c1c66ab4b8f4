"""Protection against cross-site requests, DNS rebinding and disguised paths.

A browser lets every web page send requests to a broker that its user can reach, and names the page in `Origin` or at
least in `Sec-Fetch-Site`. A page whose host name was rebound to the broker's address counts as same-origin, but its
requests carry that name in `Host`. Clients other than browsers send neither `Origin` nor `Sec-Fetch-Site`.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from pulsar_on_spark.broker.web.audited import client_of
from pulsar_on_spark.broker.web.health import PROBES
from pulsar_on_spark.security.audit_log import Audit

_HOST: Final = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^][:/@?#\s]+)(:\d+)?")
_OWN_SITE: Final = ("none", "same-origin")
"""Allowed values of `Sec-Fetch-Site`: typed into the address bar, or sent by a page of the broker itself."""
_DISGUISED: Final = re.compile(r"%(2[def]|3[0-9]|[46][1-9a-f]|[57][0-9a]|5f)", re.IGNORECASE)
"""Escapes of `/` and of the characters in routes: letters, digits, `-`, `.` and `_`."""
_SETTING: Final = re.compile(r"(/admin/v2/brokers/configuration/[^/]+/).+", re.DOTALL)
"""The path that changes a setting; the value after the group may have any escapes."""


@dataclass(frozen=True, slots=True)
class Guard:
    """The hosts and origins that requests may carry.

    Attributes:
        hosts: Allowed host names in small letters, besides IP addresses; `*` for any.
        origins: Origins of web pages that may send requests, such as `https://console.example.com`; `*` for any.
    """

    hosts: frozenset[str]
    origins: frozenset[str]

    @classmethod
    def of(cls, advertised: str, hosts: Iterable[str], origins: Iterable[str]) -> Guard:
        """Create the guard of a broker.

        Args:
            advertised: The broker's advertised address.
            hosts: Further allowed host names; `*` for any.
            origins: Origins of web pages that may send requests; `*` for any.
        """
        return cls(frozenset(map(str.lower, ("localhost", advertised, *hosts))), frozenset(map(str.lower, origins)))

    def refusal(self, method: str, path: str, headers: Headers) -> tuple[int, str] | None:
        """Return the HTTP status and the reason of a refusal; None if the request may be served.

        Args:
            method: The request's method, in capitals.
            path: The path as the client sent it, percent-encoded.
            headers: The request's headers.
        """
        if _DISGUISED.search(_spelled(method, path)):
            return 400, "The path has percent-escapes of plain characters or of a slash: write them unescaped."
        if path in PROBES:
            return None
        host = headers.get("host")
        if host is not None and not self._is_own(host):
            return 403, f"Host {host!r} is not this broker's: add it to the setting web_service_allowed_hosts."
        origin = headers.get("origin")
        if origin is None:
            is_foreign = headers.get("sec-fetch-site", "none") not in _OWN_SITE
        else:
            is_foreign = origin.partition("://")[2] != host and not self._lists(origin)
        if is_foreign:
            return 403, (
                f"Web pages of {origin or 'other sites'} may not send requests here: add their origin to the setting "
                "web_service_allowed_origins."
            )
        return None

    def _is_own(self, host: str) -> bool:
        match = _HOST.fullmatch(host)
        if match is None:
            return False
        name = match[1].strip("[]").rstrip(".").lower()
        return name in self.hosts or "*" in self.hosts or _is_address(name)

    def _lists(self, origin: str) -> bool:
        return "*" in self.origins or origin.lower() in self.origins


class Guarded:
    """Middleware that passes on only the requests that a guard allows.

    Args:
        app: The application.
        guard: The allowed hosts and origins.
        audit: The audit, which notes the refusals.
    """

    def __init__(self, app: ASGIApp, guard: Guard, audit: Audit) -> None:
        self._app = app
        self._guard = guard
        self._audit = audit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it before its body is read."""
        path = scope["raw_path"].decode("latin-1")
        refusal = self._guard.refusal(scope["method"], path, Headers(scope=scope))
        if refusal is None:
            await self._app(scope, receive, send)
            return
        status, reason = refusal
        self._audit.note_refusal(client_of(scope), None, scope["method"], path, reason=reason, status=status)
        await JSONResponse({"reason": reason}, status)(scope, receive, send)


def _spelled(method: str, path: str) -> str:
    """Return the part of a path that must not have percent escapes: all but the new value of a setting."""
    setting = _SETTING.fullmatch(path) if method == "POST" else None
    return path if setting is None else setting[1]


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
