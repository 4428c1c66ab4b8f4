"""Requests about topics that other brokers serve: redirected to one broker, or sent to several and answered together.

A request with `authoritative=true` comes from another broker or after a redirect: a broker answers it for the topics
that it serves itself, and never passes it on.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final
from urllib.parse import parse_qs

import httpx
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from pulsar_on_spark.broker.observe.models import PartitionedTopicMetadata, TopicStats
from pulsar_on_spark.broker.observe.topic_stats import summed
from pulsar_on_spark.broker.runtime.topic_work import WorkStatus
from pulsar_on_spark.broker.services.services import Services
from pulsar_on_spark.broker.web.error_responses import reason_response, refusal
from pulsar_on_spark.broker.web.requests import NAMESPACE, TOPIC
from pulsar_on_spark.metadata.records import BrokerRecord, TopicRecord
from pulsar_on_spark.model.errors import InvalidArgumentError, PulsarpyError, TopicBusyError
from pulsar_on_spark.model.names import TopicName, check_namespace
from pulsar_on_spark.topic.catalog.brokers import registered_brokers
from pulsar_on_spark.topic.catalog.bundles import NamespaceBundles

_SUBSCRIPTION: Final = f"{TOPIC}/subscription/{{subscription}}"
OF_ONE_TOPIC: Final = frozenset(
    {
        ("DELETE", TOPIC),
        ("POST", f"{TOPIC}/terminate"),
        ("POST", f"{TOPIC}/terminate/partitions"),
        ("PUT", f"{TOPIC}/unload"),
        ("DELETE", f"{TOPIC}/truncate"),
        ("PUT", f"{TOPIC}/compaction"),
        ("GET", f"{TOPIC}/compaction"),
        ("PUT", f"{TOPIC}/offload"),
        ("GET", f"{TOPIC}/offload"),
        ("GET", f"{TOPIC}/stats"),
        ("GET", f"{TOPIC}/partitioned-stats"),
        ("GET", f"{TOPIC}/internalStats"),
        ("GET", f"{TOPIC}/partitioned-internalStats"),
        ("GET", f"{TOPIC}/internal-info"),
        ("GET", f"{TOPIC}/backlog"),
        ("PUT", f"{TOPIC}/backlogSize"),
        ("PUT", _SUBSCRIPTION),
        ("DELETE", _SUBSCRIPTION),
        ("POST", f"{_SUBSCRIPTION}/skip_all"),
        ("POST", f"{_SUBSCRIPTION}/skip/{{messages}}"),
        ("POST", f"{_SUBSCRIPTION}/resetcursor/{{timestamp_ms}}"),
        ("POST", f"{_SUBSCRIPTION}/resetcursor"),
        ("POST", f"{_SUBSCRIPTION}/expireMessages/{{seconds}}"),
        ("POST", f"{_SUBSCRIPTION}/expireMessages"),
        ("POST", f"{TOPIC}/all_subscription/expireMessages/{{seconds}}"),
        ("GET", f"{_SUBSCRIPTION}/position/{{position}}"),
        ("GET", f"{TOPIC}/ledger/{{ledger}}/entry/{{entry}}"),
        ("GET", f"{TOPIC}/examinemessage"),
        ("GET", f"{TOPIC}/messageid/{{timestamp_ms}}"),
        ("GET", f"{TOPIC}/lastMessageId"),
    }
)
"""Requests about a topic or all of its partitions, which only the owners of the topic or partitions can answer."""
OF_A_NAMESPACE: Final = frozenset(
    {
        ("PUT", f"{NAMESPACE}/unload"),
        ("POST", f"{NAMESPACE}/clearBacklog"),
        ("POST", f"{NAMESPACE}/clearBacklog/{{subscription}}"),
        ("POST", f"{NAMESPACE}/unsubscribe/{{subscription}}"),
    }
)
"""Requests about all topics of a namespace: every broker carries them out for the topics that it serves."""
_UNLOADS: Final = (f"{NAMESPACE}/unload", f"{TOPIC}/unload")
_DELETION: Final = ("DELETE", f"{TOPIC}/partitions")
"""The deletion of a partitioned topic: any broker commits the deletion of all partitions, and their owners unload them.
"""
_ROUTED: Final = OF_ONE_TOPIC | OF_A_NAMESPACE | {_DELETION}
_TIMEOUT_S: Final = 60.0
_FORWARDED: Final = ("authorization", "x-pulsar-auth-method-name", "x-original-principal", "content-type")
_Json = Mapping[str, Any]


def _merged_stats(answers: Sequence[_Json]) -> _Json:
    partitions = {
        name: TopicStats.model_validate(stats) for each in answers for name, stats in each["partitions"].items()
    }
    total = summed(partitions, PartitionedTopicMetadata.model_validate(answers[0]["metadata"]))
    return total.model_dump(mode="json", by_alias=True, exclude_none=True)


def _merged_internal_stats(answers: Sequence[_Json]) -> _Json:
    return {**answers[0], "partitions": {name: part for each in answers for name, part in each["partitions"].items()}}


def _merged_compaction(answers: Sequence[_Json]) -> _Json:
    status = WorkStatus.of_all([WorkStatus(each["status"], each["lastError"]) for each in answers])
    return {"status": status.status, "lastError": status.last_error}


_MERGES: Final[Mapping[str, Callable[[Sequence[_Json]], _Json]]] = {
    f"{TOPIC}/partitioned-stats": _merged_stats,
    f"{TOPIC}/partitioned-internalStats": _merged_internal_stats,
    f"{TOPIC}/compaction": _merged_compaction,
    f"{TOPIC}/terminate/partitions": lambda answers: {key: end for each in answers for key, end in each.items()},
}
"""Functions that merge the answers of several brokers into one, by path template."""


class ByOwner:
    """Middleware that passes on only the requests that this broker can answer: all of them if the root has no other.

    Args:
        app: The application.
        routes: The application's routes, in matching order.
        services: The broker's parts.
    """

    def __init__(self, app: ASGIApp, routes: Iterable[BaseRoute], services: Services) -> None:
        self._app = app
        self._routes = [route for route in routes if isinstance(route, Route)]
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, redirect it, or merge the answers of several brokers."""
        brokers = registered_brokers(self._services.views.recent)
        answer: Response | None = None
        if scope["type"] == "http" and len(brokers) > 1:
            try:
                answer = await self._answer(scope, receive, brokers)
            except PulsarpyError as error:
                answer = refusal(error)
            except HTTPException as error:
                answer = reason_response(error.status_code, error.detail)
        await (answer or self._app)(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, brokers: Sequence[BrokerRecord]) -> Response | None:
        """Return the answer of other brokers; None if this broker's application must answer."""
        matched = self._matched(scope)
        if matched is None:
            return None
        path, values = matched
        is_authoritative = _is_set(scope, "authoritative")
        if (scope["method"], path) in OF_A_NAMESPACE:
            if is_authoritative:
                return None
            namespace = check_namespace(f"{values['tenant']}/{values['namespace']}")
            # By the newest metadata, so that each topic of the namespace has a broker, also just after an unload.
            for bundle in await self._bundles(namespace):
                await self._services.ownership.find_bundle_owner(bundle)
            return await self._gathered(scope, receive, path, namespace, brokers)
        name = TopicName.parse_any("{domain}://{tenant}/{namespace}/{topic}".format(**values))
        owners = await self._owners(name)
        if (scope["method"], path) == _DELETION:
            await self._require_unused(scope, name, owners.values())
            return None
        is_own = self._services.ownership.broker.broker in owners
        if is_own and (is_authoritative or len(owners) == 1):
            return None
        if is_authoritative:
            raise InvalidArgumentError(f"Topic {name} is not served by this broker: look it up again.")
        if len(owners) == 1:
            return redirect(scope, next(iter(owners.values())))
        return await self._gathered(scope, receive, path, name.namespace, list(owners.values()))

    def _matched(self, scope: Scope) -> tuple[str, Mapping[str, str]] | None:
        """Return the path template and its values if another broker may have to answer the request, else None."""
        for route in self._routes:
            match, child_scope = route.matches(scope)
            if match is Match.FULL:
                method = "GET" if scope["method"] == "HEAD" else scope["method"]
                return (route.path, child_scope["path_params"]) if (method, route.path) in _ROUTED else None
        return None

    async def _owners(self, name: TopicName) -> dict[str, BrokerRecord]:
        """Return the registrations of the brokers that serve a topic or its partitions, by the broker's id."""
        record = (await self._services.views.view()).get(TopicRecord, name.full)
        partitions = 0 if record is None else record.partitions or 0
        names = [name.partition(index) for index in range(partitions)] or [name]
        owners = [await self._services.ownership.find_owner(each) for each in names]
        return {owner.broker: owner for owner in owners}

    async def _gathered(
        self, scope: Scope, receive: Receive, path: str, namespace: str, brokers: Collection[BrokerRecord]
    ) -> Response:
        """Send the request to several brokers, and return their merged answer, or the first refusal.

        Raises:
            HTTPException: 503, a broker does not answer, or bundles have moved meanwhile, so that some topics may have
                been left out.
        """
        before = await self._bundles(namespace)
        answers = await self._ask_all(scope, await _body(receive), brokers)
        done = [answer for answer in answers if answer.is_success]
        # A broker answers 404 if none of its partitions has the object.
        refused = [answer for answer in answers if not answer.is_success and (answer.status_code != 404 or not done)]
        if refused:
            return Response(refused[0].content, refused[0].status_code, media_type="application/json")
        if path not in _UNLOADS and await self._bundles(namespace) != before:
            raise HTTPException(503, "Some of the topics moved to another broker meanwhile: try again.")
        if path in _MERGES:
            return JSONResponse(_MERGES[path]([answer.json() for answer in done]))
        return Response(done[0].content, done[0].status_code, media_type=done[0].headers.get("content-type"))

    async def _bundles(self, namespace: str) -> NamespaceBundles:
        """Return the bundles of a namespace with their owners, by the newest metadata."""
        return self._services.ownership.bundles(await self._services.views.view(), namespace)

    async def _require_unused(self, scope: Scope, name: TopicName, brokers: Iterable[BrokerRecord]) -> None:
        """Refuse a deletion that is not forced, if the topic is in use at another broker.

        Raises:
            TopicBusyError: the topic has producers or subscriptions.
            HTTPException: 503, another broker cannot report if the topic is in use.
        """
        own = self._services.ownership.broker.broker
        others = [broker for broker in brokers if broker.broker != own]
        if not others or _is_set(scope, "force"):
            return
        path = raw_path(scope).removesuffix("/partitions") + "/partitioned-stats"
        asked = {**scope, "method": "GET", "raw_path": path.encode("latin-1"), "query_string": b""}
        for answer in await self._ask_all(asked, b"", others):
            if not answer.is_success:
                raise HTTPException(
                    503, f"It is not known whether topic {name} is in use at another broker ({answer.text}): try again."
                )
            stats = answer.json()
            if stats["publishers"] or stats["subscriptions"]:
                raise TopicBusyError(f"Topic {name} has producers or subscriptions: close them, or force the deletion.")

    async def _ask_all(self, scope: Scope, body: bytes, brokers: Collection[BrokerRecord]) -> list[httpx.Response]:
        """Send a request to several brokers, and return their responses in the same order (errors as `_ask`)."""
        async with httpx.AsyncClient(verify=self._trusted, timeout=_TIMEOUT_S) as client:
            return await asyncio.gather(*(self._ask(client, scope, body, broker) for broker in brokers))

    async def _ask(self, client: httpx.AsyncClient, scope: Scope, body: bytes, broker: BrokerRecord) -> httpx.Response:
        """Send the request to one broker with the client's credentials, and return the response.

        Raises:
            HTTPException: 503, the broker does not answer.
        """
        headers = {name: value for name, value in Headers(scope=scope).items() if name in _FORWARDED}
        try:
            return await client.request(scope["method"], url_at(scope, broker), content=body, headers=headers)
        except httpx.HTTPError as error:
            raise HTTPException(
                503,
                f"Broker {broker.broker} does not answer ({error}), and may or may not have carried out the request: "
                "try again.",
            ) from error

    @cached_property
    def _trusted(self) -> ssl.SSLContext:
        """The TLS context for requests to other brokers, which trusts `broker_client_trust_certs_file_path`."""
        return httpx.create_ssl_context(verify=self._services.settings.broker_client_trust_certs_file_path or True)


def _is_set(scope: Scope, parameter: str) -> bool:
    return parse_qs(scope["query_string"].decode("latin-1")).get(parameter) == ["true"]


def redirect(scope: Scope, broker: BrokerRecord) -> Response:
    """Return the response that redirects a request to another broker, which will not redirect it again."""
    return Response(status_code=307, headers={"Location": url_at(scope, broker)})


def url_at(scope: Scope, broker: BrokerRecord) -> str:
    """Return the URL of a request at another broker, by HTTPS if the request came that way.

    Raises:
        HTTPException: 503, the broker has no HTTPS port.
    """
    urls = broker.default_listener
    url = urls.web_url_tls if scope["scheme"] == "https" else urls.web_url or urls.web_url_tls
    if not url:
        raise HTTPException(
            503, f"Broker {broker.broker} has no HTTPS URL for this request: set its web_service_port_tls."
        )
    query = scope["query_string"].decode("latin-1")
    return f"{url}{raw_path(scope)}?{query}{'&' if query else ''}authoritative=true"


def raw_path(scope: Scope) -> str:
    """Return the path of a request as the client sent it, percent-encoded and without the query."""
    return str(scope.get("raw_path", scope["path"].encode()).decode("latin-1")).partition("?")[0]


async def _body(receive: Receive) -> bytes:
    parts: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise HTTPException(400, "The client has disconnected.")
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)
