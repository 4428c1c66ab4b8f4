"""Authentication of HTTP requests, before anything of them but their headers is read."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from pulsar_on_spark.broker.services.services import Services
from pulsar_on_spark.broker.web.health import PROBES
from pulsar_on_spark.broker.web.requests import CERTIFICATE, PRINCIPAL
from pulsar_on_spark.security.evidence import NotAuthenticatedError
from pulsar_on_spark.security.principal import ANONYMOUS

log = logging.getLogger(__name__)

_METRICS: Final = "/metrics"
_SCHEMES: Final[Mapping[str, str]] = {"token": "Bearer", "basic": 'Basic realm="pulsar"'}
"""What clients may send, by provider."""


class Authenticated:
    """Middleware that passes on only the requests of clients that are known, and notes which client each is of.

    Args:
        app: The application.
        services: The broker's parts.
    """

    def __init__(self, app: ASGIApp, services: Services) -> None:
        self._app = app
        self._services = services
        settings = services.settings
        self._open = PROBES if settings.authenticate_metrics_endpoint else (*PROBES, _METRICS)
        names = [each.lower() for each in settings.authentication_providers]
        found = [scheme for method, scheme in _SCHEMES.items() if any(name.endswith(method) for name in names)]
        self._schemes = {"WWW-Authenticate": ", ".join(found)} if found else {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on a request, or answer 401."""
        if scope["path"] in self._open:
            await self._app({**scope, PRINCIPAL: ANONYMOUS}, receive, send)
            return
        try:
            found = await self._services.access.authenticate_http(Headers(scope=scope), scope.get(CERTIFICATE))
        except NotAuthenticatedError as error:
            host, port = scope.get("client") or ("?", 0)
            log.warning("The request %r of %s:%s is not authenticated: %s.", scope["path"][:256], host, port, error)
            await JSONResponse({"reason": "Authentication required"}, 401, self._schemes)(scope, receive, send)
        else:
            await self._app({**scope, PRINCIPAL: found}, receive, send)
