"""Authentication of HTTP requests by their headers, before their bodies are read."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from pulsar_on_spark.broker.runtime.access import METHOD_HEADER, ORIGINAL_PRINCIPAL_HEADER
from pulsar_on_spark.broker.services.services import Services
from pulsar_on_spark.broker.web.audited import client_of
from pulsar_on_spark.broker.web.error_responses import reason_response
from pulsar_on_spark.broker.web.health import PROBES
from pulsar_on_spark.broker.web.requests import CERTIFICATE, PRINCIPAL
from pulsar_on_spark.security.evidence import NotAuthenticatedError
from pulsar_on_spark.security.principal import ANONYMOUS

log = logging.getLogger(__name__)

_METRICS: Final = "/metrics"
_SCHEMES: Final[Mapping[str, str]] = {"token": "Bearer", "basic": 'Basic realm="pulsar"'}
"""The scheme that clients may use in `Authorization`, by provider."""
_ONCE: Final = ("authorization", METHOD_HEADER, ORIGINAL_PRINCIPAL_HEADER)
"""Headers that a request may have only once: if it had two, a proxy and the broker could use different ones."""
_READ_ONLY: Final = reason_response(405, "The path is for GET and HEAD: use one of them.", {"Allow": "GET, HEAD"})


class Authenticated:
    """Middleware that passes on only the requests of authenticated clients, and adds the client to each request.

    Args:
        app: The application.
        services: The broker's parts.
    """

    def __init__(self, app: ASGIApp, services: Services) -> None:
        self._app = app
        self._services = services
        settings = services.settings
        self._open = PROBES if settings.authenticate_metrics_endpoint else (*PROBES, _METRICS)
        names = [name.lower() for name in settings.authentication_providers]
        schemes = [scheme for method, scheme in _SCHEMES.items() if any(name.endswith(method) for name in names)]
        self._schemes = {"WWW-Authenticate": ", ".join(schemes)} if schemes else {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on with its client, or answer 401, 429, 400 (ambiguous headers) or 405 (write to a probe)."""
        headers = Headers(scope=scope)
        if scope["path"] in self._open:
            is_read = scope["method"] in ("GET", "HEAD")
            answer = self._app if is_read else _READ_ONLY
            await answer({**scope, PRINCIPAL: ANONYMOUS}, receive, send)
            return
        if (twice := next((name for name in _ONCE if len(headers.getlist(name)) > 1), None)) is not None:
            await reason_response(400, f"The request has the header {twice} twice: send it once.")(scope, receive, send)
            return
        try:
            principal = await self._services.access.authenticate_http(headers, scope.get(CERTIFICATE))
        except NotAuthenticatedError as error:
            await self._refuse(scope, receive, send, error)
        else:
            await self._app({**scope, PRINCIPAL: principal}, receive, send)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send, error: NotAuthenticatedError) -> None:
        address, path = client_of(scope), scope["path"]
        is_first = self._services.audit.note_refusal(
            address,
            None,
            scope["method"],
            path,
            reason=str(error),
            status=401,
            method=error.method,
            credential=error.credential,
        )
        if is_first:  # the audit counts the others
            log.warning("The request %r of %s is not authenticated: %s.", path[:256], address, error)
        if await self._services.slow_refusals.turn(address):
            answer = JSONResponse({"reason": "Authentication required"}, 401, self._schemes)
        else:
            answer = JSONResponse({"reason": "Too many requests are not authenticated: try again later."}, 429)
        await answer(scope, receive, send)
