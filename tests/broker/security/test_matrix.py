"""Each route and each command against each role, and that none was forgotten."""

from __future__ import annotations

import asyncio
import base64
import itertools
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import jwt
import pytest
from fastapi import FastAPI
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from pulsar_on_spark.broker.connection.connection import Connection
from pulsar_on_spark.broker.handlers import make_handlers
from pulsar_on_spark.broker.handlers.command_rules import GUARDS as COMMAND_GUARDS
from pulsar_on_spark.broker.handlers.command_rules import require
from pulsar_on_spark.broker.runtime.access import access_of
from pulsar_on_spark.broker.runtime.authentication import authentication_of
from pulsar_on_spark.broker.runtime.settings import BrokerSettings
from pulsar_on_spark.broker.runtime.slow_refusals import SlowRefusals
from pulsar_on_spark.broker.runtime.views import Views
from pulsar_on_spark.broker.services.broker_health import BrokerHealth
from pulsar_on_spark.broker.services.services import Services
from pulsar_on_spark.broker.web.app import create_app
from pulsar_on_spark.broker.web.health import PROBES
from pulsar_on_spark.broker.web.route_rules import GUARDS
from pulsar_on_spark.model.errors import TopicNotFoundError
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.protocol import commands
from pulsar_on_spark.protocol.commands import BaseCommand
from pulsar_on_spark.root import Root
from pulsar_on_spark.security.audit_log import Audit, NoAudit
from pulsar_on_spark.security.principal import Principal
from pulsar_on_spark.security.rules import NotAuthorizedError
from pulsar_on_spark.topic.catalog import permissions, tenants
from pulsar_on_spark.topic.catalog.policies.policies import FIELDS

from .expected import COMMANDS, MAY, ROLES, ROUTES, UNKNOWN_TENANT
from .routes import ROUTES_OF_APP, requests_of, route_of

SECRET = b"s" * 32
TOPICS = ("partitioned", "partitioned-partition-0", "single", "missing")
"""The same permissions are granted on each, and the answers must be the same."""
PASSED = 299
HOST = b"localhost"


class Guarded:
    """The broker's web application, whose routes all answer 299 and whose bodies must not be read."""

    def __init__(self, path: Path) -> None:
        self.root = Root.create(path)
        self.root.create_topic("partitioned", 1)
        self.root.create_topic("single")
        store = self.root.store
        tenants.update_tenant(store, "public", ["admin"], [])
        tenants.create_tenant(store, "other", ["other-admin"])
        tenants.create_namespace(store, "other/n")
        permissions.grant_permission(store, "public/default", "producer", ["produce"])
        permissions.grant_permission(store, "public/default", "consumer", ["consume"])
        permissions.grant_subscription_permission(store, "public/default", "s", ["consumer", "subscriber"])
        permissions.grant_subscription_permission(store, "public/default", "kept", ["subscriber"])
        for topic in ("partitioned", "single", "missing"):
            permissions.grant_permission(store, TopicName.parse(topic), "topic-producer", ["produce"])
            permissions.grant_permission(store, TopicName.parse(topic), "topic-consumer", ["consume"])
        settings = BrokerSettings(
            authentication_enabled=True,
            authentication_providers=("token",),
            token_secret_key="data:;base64," + base64.b64encode(SECRET).decode(),
            anonymous_user_role="anonymous",
            proxy_roles=("proxy", "weak-proxy"),
            authorization_enabled=True,
            super_user_roles=("root", "proxy"),
        )
        views, audit = Views(self.root), Audit(NoAudit())
        asyncio.run(views.view())
        self.services = cast(
            Services,
            SimpleNamespace(
                settings=settings,
                listeners=SimpleNamespace(hosts=()),
                access=access_of(settings, authentication_of(settings))(views),
                audit=audit,
                slow_refusals=SlowRefusals(audit),
                views=views,
            ),
        )
        self.hosts = itertools.count()
        self.app = self._app()
        self.headers = {role: self._credentials(role) for role in ROLES}

    def _app(self) -> FastAPI:
        app = create_app(self.services, cast(BrokerHealth, None))
        app.router = cast(Any, passed)
        return app

    def _credentials(self, role: str) -> list[tuple[bytes, bytes]]:
        if role == "anonymous":
            return []
        first, _, original = role.partition(" for ")
        token = jwt.encode({"sub": first}, SECRET if role != "unauthenticated" else b"x" * 32, "HS256")
        forwarded = [(b"x-original-principal", original.encode())] if original else []
        return [(b"authorization", f"Bearer {token}".encode()), *forwarded]

    async def status(self, method: str, path: str, role: str, *more: tuple[bytes, bytes], host: bytes = HOST) -> int:
        scope: Scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": [(b"host", host), *self.headers[role], *more],
            "client": (f"host-{next(self.hosts)}", 1),  # a host that fails often waits for its answers
        }
        answered: list[int] = []

        async def receive() -> Message:
            raise AssertionError("the body is not looked at before the client is authorized")

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                answered.append(message["status"])

        await self.app(scope, receive, send)
        return answered[0]


async def passed(scope: Scope, receive: Receive, send: Send) -> None:
    await Response(status_code=PASSED)(scope, receive, send)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Guarded:
    return Guarded(tmp_path_factory.mktemp("guarded") / "root")


# -- routes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ROUTES)
def test_each_role_may_do_what_the_table_says(guarded: Guarded, rule: str) -> None:
    allowed, refused = MAY[rule]

    async def scene() -> None:
        for method, path in requests_of(rule):
            for name in TOPICS if "TOPIC" in path else ("",):
                for role in ROLES:
                    place = path.replace("TOPIC", name)
                    wanted = PASSED if role in allowed else 401 if role == "unauthenticated" else refused
                    assert await guarded.status(method, place, role) == wanted, f"{method} {place} as {role}"

    asyncio.run(scene())


@pytest.mark.parametrize("rule", ROUTES)
def test_each_role_learns_what_the_table_says_about_an_unknown_tenant(guarded: Guarded, rule: str) -> None:
    async def scene() -> None:
        for method, path in requests_of(rule):
            if "public" not in path:
                continue
            place = path.replace("public", "absent").replace("TOPIC", "t")
            for role in ROLES:
                refused = 401 if role == "unauthenticated" else UNKNOWN_TENANT[rule]
                wanted = PASSED if role in ("root", "proxy for root") else refused
                assert await guarded.status(method, place, role) == wanted, f"{method} {place} as {role}"

    asyncio.run(scene())


def test_no_route_was_forgotten() -> None:
    """Each of the application's own routes has a rule, and a row in the table of this test."""
    asked = {
        (method, found[0].path)
        for rule in ROUTES
        for method, path in requests_of(rule)
        if (found := route_of(method, path.replace("TOPIC", "t"))) is not None
    }
    served = {(method, route.path) for route in ROUTES_OF_APP for method in (route.methods or ()) if method != "HEAD"}
    assert sorted(served - GUARDS.keys()) == [], "routes without a rule"
    assert sorted(GUARDS.keys() - served - {("GET", "/openapi.json")}) == [], "rules without a route"
    shadowed = {("PUT", "/admin/v2/namespaces/{tenant}/{namespace}/bundles/split")}  # by that of any bundle
    assert sorted(served - asked - shadowed) == [], "routes that the table of expected answers lacks"
    assert len(served) > 370


def test_every_route_that_names_a_subscription_checks_its_reserved_roles(guarded: Guarded) -> None:
    """Checked by the rules themselves, so also for routes that the table lacks."""
    named = {(method, path.replace("{subscription}", "kept")) for method, path in GUARDS if "{subscription}" in path}
    place = {"{domain:domain}": "persistent", "{tenant}": "public", "{namespace}": "default", "{topic}": "single"}
    assert len(named) > 30
    for method, path in named:
        for variable, value in place.items():
            path = path.replace(variable, value)
        path = re.sub(r"\{[^}]*\}", "1", path)
        assert asyncio.run(guarded.status(method, path, "consumer")) in (401, 403), f"{method} {path}"


def test_other_methods_at_an_open_path_do_not_depend_on_roles(guarded: Guarded) -> None:
    for path in ("/status.html", "/admin/v2/brokers/ready", "/metrics"):
        for method in ("OPTIONS", "POST", "DELETE"):
            assert asyncio.run(guarded.status(method, path, "unauthenticated")) == 405
        assert asyncio.run(guarded.status("HEAD", path, "unauthenticated")) == PASSED


def test_no_route_is_for_web_pages_of_others(guarded: Guarded) -> None:
    """Even if a browser sends the request with the user's credentials, or to a name that was rebound to this host."""

    async def scene() -> None:
        for method, path in {request for rule in ROUTES for request in requests_of(rule)}:
            place = path.replace("TOPIC", "single")
            if place in PROBES:
                continue
            for name, value in (
                (b"origin", b"http://evil.example"),
                (b"origin", b"null"),
                (b"sec-fetch-site", b"cross-site"),
            ):
                assert await guarded.status(method, place, "root", (name, value)) == 403, f"{method} {place}: {value!r}"
            assert await guarded.status(method, place, "root", host=b"evil.example") == 403, f"{method} {place}"

    asyncio.run(scene())


def test_a_request_whose_client_is_ambiguous_is_refused(guarded: Guarded) -> None:
    """A proxy before the broker might judge by the other header."""
    for role in ("root", "stranger"):
        again = guarded.headers[role][0]
        for more in ([again], [(b"x-original-principal", b"a")] * 2, [(b"x-pulsar-auth-method-name", b"token")] * 2):
            assert asyncio.run(guarded.status("GET", "/admin/v2/tenants", role, *more)) == 400


def test_a_route_without_a_rule_is_refused(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(cast(dict[Any, Any], GUARDS), ("GET", "/admin/v2/tenants"))
    for role in ("stranger", "root"):
        assert asyncio.run(guarded.status("GET", "/admin/v2/tenants", role)) == 403


@pytest.mark.parametrize("rule", ["super user", "topic, produce or consume"])
def test_head_counts_as_get(guarded: Guarded, rule: str) -> None:
    allowed, refused = MAY[rule]
    (path, *_) = [path.replace("TOPIC", "single") for method, path in requests_of(rule) if method == "GET"]
    for role in set(ROLES) - {"unauthenticated"}:
        wanted = PASSED if role in allowed else refused
        assert asyncio.run(guarded.status("HEAD", path, role)) == wanted, f"HEAD {path} as {role}"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/nothing/here"),
        ("PATCH", "/admin/v2/tenants"),
        ("GET", "/admin/v2/persistent/public/absent/t/stats"),
        ("GET", "/admin/v2/tenants/absent"),
        ("GET", "/admin/v2/tenants/public"),
        ("GET", "/admin/v2/persistent/other/n/t/stats"),
        ("GET", "/admin/v2/persistent/public/default/foreign/lastMessageId"),
        ("POST", "/admin/v2/persistent/public/default/__change_events/terminate"),
        ("GET", "/admin/v2/persistent/pulsar/system/x/stats"),
        ("GET", "/lookup/v2/topic/persistent/public/default/__change_events"),
    ],
)
def test_objects_of_others_and_missing_objects_look_the_same(guarded: Guarded, method: str, path: str) -> None:
    for role in ("stranger", "topic-producer", "topic-consumer", "subscriber", "weak-proxy for root"):
        assert asyncio.run(guarded.status(method, path, role)) == 401
    assert asyncio.run(guarded.status(method, path, "root")) == PASSED


def test_every_role_looks_up_transaction_coordinators(guarded: Guarded) -> None:
    for path in (
        "/lookup/v2/topic/persistent/pulsar/system/transaction_coordinator_assign-partition-0",
        "/admin/v2/persistent/pulsar/system/transaction_coordinator_assign/partitions",
    ):
        assert asyncio.run(guarded.status("GET", path, "stranger")) == PASSED
    deleting = guarded.status("DELETE", "/admin/v2/persistent/pulsar/system/transaction_coordinator_assign", "admin")
    assert asyncio.run(deleting) == 403


def test_an_invalid_name_is_reported_to_any_role(guarded: Guarded) -> None:
    for role in ("stranger", "root"):
        assert asyncio.run(guarded.status("GET", "/admin/v2/persistent/a$b/c/t/stats", role)) == 412


PRODUCING, CONSUMING = ("producer", "topic-producer"), ("consumer", "topic-consumer")
NO_ADMINS = (*PRODUCING, *CONSUMING, "subscriber", "stranger", "other-admin")


@pytest.mark.parametrize("topic", TOPICS)
def test_producers_and_consumers_do_not_manage_policies(guarded: Guarded, topic: str) -> None:
    """They could set a topic's retention, time to live and offloading (CVE-2024-28098)."""
    names = {policy.topic for policy in FIELDS.values() if policy.topic is not None}
    assert {
        "retention",
        "messageTTL",
        "backlogQuota",
        "maxProducers",
        "compactionThreshold",
        "offloadPolicies",
    } <= names

    async def scene() -> None:
        for name in names:
            path = f"/admin/v2/persistent/public/default/{topic}/{name}"
            for method in ("POST", "DELETE"):
                for role in NO_ADMINS:
                    assert await guarded.status(method, path, role) == 403, f"{method} {path} as {role}"
                assert await guarded.status(method, path, "admin") == PASSED, f"{method} {path}"

    asyncio.run(scene())


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize(
    ("requests", "roles", "refused"),
    [
        ("PUT unload, PUT compaction, GET compaction, POST terminate, DELETE truncate", NO_ADMINS, 401),
        ("PUT subscription/free, PUT subscription/free/properties, GET subscription/free/properties", PRODUCING, 401),
        ("POST subscription/free/resetcursor, DELETE subscription/free, GET subscriptions", PRODUCING, 401),
    ],
)
def test_partitioned_topics_are_managed_by_the_same_roles_as_others(
    guarded: Guarded, topic: str, requests: str, roles: tuple[str, ...], refused: int
) -> None:
    """Producers and consumers could unload and compact partitioned ones, and producers subscribe (CVE-2024-29834)."""
    for method, path in (each.split() for each in requests.split(", ")):
        place = f"/admin/v2/persistent/public/default/{topic}/{path}"
        for role in roles:
            assert asyncio.run(guarded.status(method, place, role)) == refused, f"{method} {place} as {role}"
        assert asyncio.run(guarded.status(method, place, "admin")) == PASSED


def test_properties_of_namespaces_are_their_administrators(guarded: Guarded) -> None:
    """Any client could read and change those of any namespace (CVE-2024-29834)."""
    for namespace, roles, admin in (
        ("public/default", NO_ADMINS, "admin"),
        ("other/n", (*PRODUCING, *CONSUMING, "stranger", "admin"), "other-admin"),
    ):
        for method, path in (
            *((method, "properties") for method in ("GET", "PUT", "DELETE")),
            ("GET", "property/k"),
            ("PUT", "property/k/v"),
            ("DELETE", "property/k"),
        ):
            place = f"/admin/v2/namespaces/{namespace}/{path}"
            for role in roles:
                assert asyncio.run(guarded.status(method, place, role)) == 403, f"{method} {place} as {role}"
            assert asyncio.run(guarded.status(method, place, admin)) == PASSED


# -- commands ----------------------------------------------------------------------------------------------------------


BODIES: dict[str, type[Any]] = {
    "GET_TOPICS_OF_NAMESPACE": commands.CommandGetTopicsOfNamespace,
    "WATCH_TOPIC_LIST": commands.CommandWatchTopicList,
    "LOOKUP": commands.CommandLookupTopic,
    "PARTITIONED_METADATA": commands.CommandPartitionedTopicMetadata,
    "GET_SCHEMA": commands.CommandGetSchema,
    "PRODUCER": commands.CommandProducer,
    "GET_OR_CREATE_SCHEMA": commands.CommandGetOrCreateSchema,
    "SUBSCRIBE": commands.CommandSubscribe,
}


def connection(role: str) -> Connection:
    first, _, original = role.partition(" for ")
    return cast(Connection, SimpleNamespace(principal=Principal(first, original or None), address="test:1"))


def may(guarded: Guarded, role: str, type_: int, **fields: Any) -> bool:
    body = BODIES.get(BaseCommand.Type.Name(type_), SimpleNamespace)(**fields)
    try:
        require(guarded.services, connection(role), COMMAND_GUARDS[type_], body)
    except NotAuthorizedError as error:
        return not str(error).startswith("Client is not authorized to ")
    return True


@pytest.mark.parametrize("rule", COMMANDS)
def test_each_role_may_send_what_the_table_says(guarded: Guarded, rule: str) -> None:
    allowed, _ = MAY[rule]
    for name in COMMANDS[rule].split():
        for topic in TOPICS if name in BODIES else ("",):
            fields = {"topic": topic} if "namespace" not in rule else {"namespace": "public/default"}
            if name == "SUBSCRIBE":
                fields["subscription"] = "s"
            for role in set(ROLES) - {"unauthenticated"}:
                found = may(guarded, role, BaseCommand.Type.Value(name), **fields if name in BODIES else {})
                assert found is (role in allowed), f"{name} as {role} on {topic}"


def test_no_command_was_forgotten(guarded: Guarded) -> None:
    handlers = make_handlers(guarded.services)
    handled = {*handlers.requests, *handlers.signals, BaseCommand.SEND}
    names = {BaseCommand.Type.Name(type_) for type_ in handled}
    assert sorted(names - {BaseCommand.Type.Name(type_) for type_ in COMMAND_GUARDS}) == [], "commands without a rule"
    assert {BaseCommand.Type.Name(type_) for type_ in COMMAND_GUARDS} == names, "rules without a command"
    assert sorted(names - {name for rule in COMMANDS.values() for name in rule.split()}) == [], "not in the table"


def test_a_command_without_a_rule_keeps_the_broker_from_starting(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    for type_ in (BaseCommand.PRODUCER, BaseCommand.ACK):
        with monkeypatch.context() as patch:
            patch.delitem(cast(dict[Any, Any], COMMAND_GUARDS), type_)
            with pytest.raises(KeyError):
                make_handlers(guarded.services)


def test_a_producer_needs_its_initial_subscription(guarded: Guarded) -> None:
    producer = BaseCommand.PRODUCER
    assert may(guarded, "producer", producer, topic="single", initial_subscription_name="")
    assert not may(guarded, "producer", producer, topic="single", initial_subscription_name="free")
    permissions.grant_permission(guarded.root.store, "public/default", "both", ["produce", "consume"])
    asyncio.run(guarded.services.views.view())
    assert may(guarded, "both", producer, topic="single", initial_subscription_name="free")
    assert not may(guarded, "both", producer, topic="single", initial_subscription_name="s")


def test_a_subscription_is_for_its_roles(guarded: Guarded) -> None:
    subscribe = BaseCommand.SUBSCRIBE
    assert may(guarded, "topic-consumer", subscribe, topic="single", subscription="free")
    assert not may(guarded, "topic-consumer", subscribe, topic="single", subscription="s")
    assert not may(guarded, "subscriber", subscribe, topic="single", subscription="s")


def test_system_topics_are_for_super_users(guarded: Guarded) -> None:
    """Their content decides about topics of other owners (CVE-2023-30428)."""
    for type_, fields in (
        (BaseCommand.PRODUCER, {}),
        (BaseCommand.SUBSCRIBE, {"subscription": "free"}),
        (BaseCommand.GET_SCHEMA, {}),
    ):
        for topic in ("__change_events", "__change_events-partition-0", "pulsar/system/x"):
            for role in ("admin", "producer", "consumer"):
                assert not may(guarded, role, type_, topic=topic, **fields)
            assert may(guarded, "root", type_, topic=topic, **fields)


def test_a_missing_namespace_is_reported_to_any_role(guarded: Guarded) -> None:
    for type_ in (BaseCommand.LOOKUP, BaseCommand.PARTITIONED_METADATA):
        with pytest.raises(TopicNotFoundError):
            may(guarded, "stranger", type_, topic="absent/absent/t")
    assert not may(guarded, "stranger", BaseCommand.PRODUCER, topic="absent/absent/t")
