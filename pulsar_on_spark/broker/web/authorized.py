"""Authorization of HTTP requests by method and path, before anything else of them is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from pulsar_on_spark.broker.runtime.access import Access, authorize
from pulsar_on_spark.broker.runtime.views import Views
from pulsar_on_spark.broker.web.audited import OUTCOME
from pulsar_on_spark.broker.web.error_responses import refusal
from pulsar_on_spark.broker.web.requests import PRINCIPAL
from pulsar_on_spark.broker.web.route_rules import GUARDS, Rule, shows_missing_tenant, super_user
from pulsar_on_spark.model.errors import PulsarpyError
from pulsar_on_spark.security.rules import NotAuthorizedError
from pulsar_on_spark.topic.catalog.tenants import require_tenant

_NO_RULE: Final = "This broker has no authorization rule for the path, so the request is refused: report this as a bug."


class Authorized:
    """Middleware that passes on only the requests that the client may send.

    A refused client gets the same answer whether the object exists or not, and whatever the body; only a missing tenant
    is reported to every client (`shows_missing_tenant`).

    Args:
        app: The application.
        routes: The application's routes, in matching order.
        access: The authorization of clients.
        views: The views of the root's metadata.
    """

    def __init__(self, app: ASGIApp, routes: Iterable[BaseRoute], access: Access, views: Views) -> None:
        self._app = app
        self._routes = [route for route in routes if isinstance(route, Route)]
        self._access = access
        self._views = views

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        try:
            self._authorize(scope)
        except PulsarpyError as error:
            scope[OUTCOME].reason = str(error)
            await refusal(error)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _authorize(self, scope: Scope) -> None:
        rule, path = self._rule(scope)
        asked = rule(path)
        if asked is None:
            return
        operation, resource = asked
        try:
            authorize(self._access, scope[PRINCIPAL], operation, resource)
        except NotAuthorizedError:
            scope[OUTCOME].is_refused = True
            if shows_missing_tenant(operation, resource):
                require_tenant(self._views.recent, resource.tenant)
            raise

    def _rule(self, scope: Scope) -> tuple[Rule, Mapping[str, str]]:
        """Return the rule of a request's route, and the variables of its path; unknown paths are for super users."""
        for route in self._routes:
            match, child_scope = route.matches(scope)
            if match is Match.FULL:
                rule = GUARDS.get((scope["method"], route.path))
                if rule is None:
                    raise NotAuthorizedError(_NO_RULE, 403)
                return rule, child_scope["path_params"]
        return super_user, {}
