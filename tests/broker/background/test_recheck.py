"""Reauthorization of clients: changed rights, bounded turns, a revocation while a client opens something."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Coroutine
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import jwt
import pulsar
import pytest

from pulsar_on_spark.broker.background.recheck import AT_ONCE, Recheck, Rights
from pulsar_on_spark.broker.broker import Broker
from pulsar_on_spark.broker.runtime.access import OpenAccess
from pulsar_on_spark.broker.runtime.settings import BrokerSettings
from pulsar_on_spark.broker.runtime.views import Views
from pulsar_on_spark.broker.topics.topic_watch import TopicWatch
from pulsar_on_spark.broker.topics.topics import Topics
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.protocol.commands import CommandGetSchema, CommandGetTopicsOfNamespace, ServerError
from pulsar_on_spark.root import Root
from pulsar_on_spark.security.operations import Operation, Resource
from pulsar_on_spark.security.principal import Principal
from pulsar_on_spark.security.rules import ALLOWED, Decision
from pulsar_on_spark.topic.catalog import permissions, tenants
from tests.broker.clients.raw import answer, command, connect
from tests.kit.waiting import until

LIMIT_S = 60
NAMESPACE = "public/default"
SECRET = b"r" * 32


def test_changed_rights_name_their_tenants_and_namespaces(tmp_path: Path) -> None:
    store = Root.create(tmp_path / "root").store
    tenants.create_tenant(store, "shop", ["a"])
    tenants.create_namespace(store, "shop/n")

    def changed(change: Callable[[], None]) -> frozenset[str]:
        before = Rights.of(store.view())
        change()
        return Rights.of(store.view()).changed_since(before)

    assert changed(lambda: permissions.grant_permission(store, "shop/n", "b", ["produce"])) == {"shop/n"}
    assert changed(lambda: tenants.set_namespace_properties(store, "shop/n", {"k": "v"})) == frozenset()
    assert changed(lambda: tenants.update_tenant(store, "shop", ["a"], ["standalone"])) == frozenset()
    assert changed(lambda: tenants.update_tenant(store, "shop", [], [])) == {"shop"}
    assert changed(lambda: tenants.delete_tenant(store, "shop", force=True)) == {"shop", "shop/n"}


class Refusing(OpenAccess):
    """Refuses a role."""

    def decide(self, principal: Principal, operation: Operation, resource: Resource) -> Decision:
        return Decision(False, "No.", 401) if principal.role == "revoked" else ALLOWED


class Client:
    """A client with one producer."""

    def __init__(self, role: str | None) -> None:
        self.peer = SimpleNamespace(principal=None if role is None else Principal(role))
        self.is_closed = False

    def disconnect(self) -> None:
        self.is_closed = True


def topic(namespace: str, clients: list[Client]) -> Any:
    return SimpleNamespace(
        name=TopicName.parse(f"{namespace}/t"),
        producers=SimpleNamespace(connected=clients),
        subscriptions=SimpleNamespace(all=[]),
    )


class Loaded(list[Any]):
    non_persistent = ()


def test_clients_are_checked_where_rights_changed_and_in_bounded_turns(tmp_path: Path) -> None:
    root = Root.create(tmp_path / "root")
    tenants.create_namespace(root.store, "public/other")

    async def scene() -> None:
        views = Views(root)
        await views.view()
        many = [Client(("revoked", "other", None)[number % 3]) for number in range(3 * AT_ONCE)]
        elsewhere = [Client("revoked")]
        ended: list[int] = []
        watch = SimpleNamespace(
            watchers=[(Client(role).peer, number, NAMESPACE) for number, role in enumerate(("revoked", "other"))],
            unwatch=lambda peer, number: ended.append(number),
        )
        topics = Loaded([topic("public/other", elsewhere), topic(NAMESPACE, many)])
        recheck = Recheck(views, cast(Topics, topics), cast(TopicWatch, watch), Refusing())
        await recheck.check_clients()
        assert not any(client.is_closed for client in many), "nothing has changed"
        permissions.grant_permission(root.store, NAMESPACE, "a", ["produce"])
        await views.view()
        seen: list[int] = []

        async def others() -> None:
            while True:
                seen.append(sum(client.is_closed for client in many))
                await asyncio.sleep(0)

        turn = asyncio.create_task(others())
        await recheck.check_clients()
        turn.cancel()
        steps = [after - before for before, after in pairwise(seen)]
        assert max(steps, default=0) <= AT_ONCE
        assert len(seen) >= 2, "other work had its turns"
        assert [client.is_closed for client in many] == [
            client.peer.principal == Principal("revoked") for client in many
        ]
        assert not elsewhere[0].is_closed
        assert ended == [0]

    asyncio.run(scene())


# -- a revocation while a client opens something -----------------------------------------------------------------------


def settings() -> BrokerSettings:
    return BrokerSettings(
        broker_service_port=0,
        web_service_port=0,
        authentication_enabled=True,
        authentication_providers=("token",),
        token_secret_key="data:;base64," + base64.b64encode(SECRET).decode(),
        authorization_enabled=True,
    )


def opening_producer(client: pulsar.Client) -> object:
    return client.create_producer("t")


def opening_consumer(client: pulsar.Client) -> object:
    return client.subscribe("t", "s")


@pytest.mark.parametrize("opening", [opening_producer, opening_consumer])
def test_a_right_that_is_revoked_while_a_topic_is_loaded_opens_nothing(
    tmp_path: Path, opening: Callable[[pulsar.Client], object]
) -> None:
    """The first check uses the view before the revocation; at the recheck no topic knows the client yet."""

    async def scene() -> None:
        broker = await Broker.start(tmp_path / "root", settings())
        store = broker.root.store
        permissions.grant_permission(store, NAMESPACE, "a", ["produce", "consume"])
        await broker._views.view()
        broker._topics.again = revoking(broker._topics.again, broker)  # type: ignore[method-assign]
        token = pulsar.AuthenticationToken(jwt.encode({"sub": "a"}, SECRET, "HS256"))
        client = pulsar.Client(broker.service_url, authentication=token)
        try:
            with pytest.raises(pulsar.AuthorizationError):
                await asyncio.to_thread(opening, client)
            (loaded,) = broker._topics
            assert loaded.producers.is_empty
            assert [subscription.consumers for subscription in loaded.subscriptions.all if subscription.consumers] == []
        finally:
            await asyncio.to_thread(client.close)
            await broker.stop()

    def revoking(
        original: Callable[[Any], Awaitable[Any]], broker: Broker
    ) -> Callable[[Any], Coroutine[Any, Any, Any]]:
        async def again(topic: Any) -> Any:
            await asyncio.to_thread(permissions.revoke_permission, broker.root.store, NAMESPACE, "a")
            await broker._views.view()
            return await original(topic)

        return again

    asyncio.run(asyncio.wait_for(scene(), LIMIT_S))


LISTING = command(
    "GET_TOPICS_OF_NAMESPACE",
    getTopicsOfNamespace=CommandGetTopicsOfNamespace(request_id=1, namespace=NAMESPACE),
)
READING = command("GET_SCHEMA", getSchema=CommandGetSchema(request_id=1, topic="t"))


@pytest.mark.parametrize(
    ("asking", "where", "code"),
    [(LISTING, "error", "error"), (READING, "getSchemaResponse", "error_code")],
    ids=["topics", "schema"],
)
def test_a_right_that_is_revoked_while_an_answer_waits_shows_nothing(
    tmp_path: Path, asking: bytes, where: str, code: str
) -> None:
    """Large answers wait until the client has read others, which may take as long as it likes."""

    async def scene() -> None:
        broker = await Broker.start(tmp_path / "root", settings())
        store = broker.root.store
        permissions.grant_permission(store, NAMESPACE, "a", ["produce", "consume"])
        await broker._views.view()
        reader, writer = await connect(broker.service_url, token=jwt.encode({"sub": "a"}, SECRET, "HS256"))
        (connection,) = broker._connections._all
        try:
            async with connection.large_answers.turn():
                writer.write(asking)
                await until(lambda: connection.requests._tasks)
                await asyncio.to_thread(permissions.revoke_permission, store, NAMESPACE, "a")
                await broker._views.view()
            said = getattr(await answer(reader), where)
            assert getattr(said, code) == ServerError.AuthorizationError
        finally:
            writer.close()
            await broker.stop()

    asyncio.run(asyncio.wait_for(scene(), LIMIT_S))
