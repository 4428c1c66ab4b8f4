"""The routes of the broker's web application, and the requests that the table of expected answers has for them."""

from __future__ import annotations

from collections.abc import Iterator

from starlette.routing import Match, Route

from pulsar_on_spark.broker.web.routers import ROUTERS

from .expected import ROUTES

ROUTES_OF_APP = [route for router in ROUTERS for route in router.routes if isinstance(route, Route)]


def requests_of(rule: str) -> Iterator[tuple[str, str]]:
    """The methods and paths under a rule; TOPIC stands for a topic's name."""
    for line in ROUTES[rule].split("\n"):
        *methods, path = line.split() or [""]
        for method in methods:
            yield method, path


def route_of(method: str, path: str) -> tuple[Route, dict[str, str]] | None:
    """The route of a request, and the variables of its path; None without a route."""
    scope = {"type": "http", "method": method, "path": path, "root_path": "", "headers": []}
    for route in ROUTES_OF_APP:
        match, found = route.matches(scope)
        if match is Match.FULL:
            return route, found["path_params"]
    return None
