"""Authorization with the official Python client, raw sockets and HTTP: grants, refusals, revocations."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import jwt
import pulsar
import pytest

from pulsar_on_spark.broker.connection.refusal_log import LINES
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.protocol.commands import (
    BaseCommand,
    CommandGetOrCreateSchema,
    CommandGetSchema,
    CommandGetTopicsOfNamespace,
    CommandLookupTopic,
    CommandPartitionedTopicMetadata,
    CommandProducer,
    CommandSeek,
    CommandSubscribe,
    CommandWatchTopicList,
    Schema,
    ServerError,
)
from pulsar_on_spark.root import Root
from pulsar_on_spark.security.principal import MAX_ROLE_BYTES
from pulsar_on_spark.topic.catalog import permissions
from tests.kit.running_broker import RunningBroker
from tests.kit.token_settings import token_settings
from tests.kit.waiting import wait_until

from .raw import answer, command, connect

LIMIT_S = 60
SOON_S = 5.0
"""A revocation takes effect within 2 s, and a busy machine needs some to see it."""
SECRET = os.urandom(32)
SILENT = pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)


def token(role: str) -> str:
    return jwt.encode({"sub": role}, SECRET, "HS256")


@pytest.fixture(scope="module")
def broker(memory_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    settings = token_settings(tmp_path_factory.mktemp("secret"), SECRET, "root,proxy") | {
        "proxy_roles": "proxy",
    }
    with RunningBroker(memory_folder / "authorized", settings) as running:
        yield running


class Admin:
    """The admin API as one role."""

    def __init__(self, broker: RunningBroker, role: str) -> None:
        headers = {"Authorization": f"Bearer {token(role)}"}
        self._http = httpx.Client(base_url=f"{broker.web_url}/admin/v2", headers=headers, timeout=LIMIT_S)

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> httpx.Response:
        return self._http.request(method, path, json=body, headers=headers)

    def do(self, method: str, path: str, body: Any = None) -> Any:
        found = self.ask(method, path, body)
        assert found.is_success, found.text
        return found.json() if found.content else None


@pytest.fixture(scope="module")
def root(broker: RunningBroker) -> Admin:
    return Admin(broker, "root")


@pytest.fixture
def namespace(root: Admin, topic: str) -> str:
    """A namespace of its own in the tenant `shop`, which `keeper` administers."""
    if root.ask("GET", "/tenants/shop").is_error:
        root.do("PUT", "/tenants/shop", {"adminRoles": ["keeper"]})
    root.do("PUT", f"/namespaces/shop/{topic}")
    return f"shop/{topic}"


def client(broker: RunningBroker, role: str) -> pulsar.Client:
    given = pulsar.AuthenticationToken(token(role))
    return pulsar.Client(broker.url, authentication=given, operation_timeout_seconds=30, logger=SILENT)


def is_refused(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except pulsar.AuthorizationError:
        return True
    return False


# -- over HTTP ---------------------------------------------------------------------------------------------------------


def test_permissions_of_a_namespace(root: Admin, namespace: str) -> None:
    path = f"/namespaces/{namespace}/permissions"
    assert root.do("GET", path) == {}
    root.do("POST", f"{path}/orders", ["consume", "produce"])
    root.do("POST", f"{path}/reports", ["consume"])
    assert root.do("GET", path) == {"orders": ["produce", "consume"], "reports": ["consume"]}
    root.do("POST", f"{path}/orders", ["functions"])
    root.do("DELETE", f"{path}/reports")
    assert root.do("GET", path) == {"orders": ["functions"]}
    assert root.ask("POST", f"{path}/orders", ["write"]).status_code == 400
    assert root.ask("POST", f"{path}/{'ä' * 513}", ["produce"]).status_code == 412
    assert root.ask("GET", "/namespaces/shop/absent/permissions").status_code == 404
    assert root.ask("POST", "/namespaces/shop/absent/permissions/a", ["produce"]).status_code == 404


def test_the_longest_role_of_a_token_can_have_a_permission(broker: RunningBroker, root: Admin, namespace: str) -> None:
    role = "ä" * (MAX_ROLE_BYTES // 2)
    longest = Admin(broker, role)
    assert longest.ask("GET", f"/namespaces/{namespace}/topics").status_code == 403
    root.do("POST", f"/namespaces/{namespace}/permissions/{role}", ["consume"])
    assert longest.do("GET", f"/namespaces/{namespace}/topics") == []
    root.do("POST", "/tenants/shop", {"adminRoles": ["keeper", role]})
    assert longest.do("GET", f"/namespaces/{namespace}/permissions") == {role: ["consume"]}
    root.do("POST", "/tenants/shop", {"adminRoles": ["keeper"]})
    assert Admin(broker, f"{role}x").ask("GET", "/brokers/version").status_code == 401


def test_permissions_of_a_topic(root: Admin, namespace: str) -> None:
    path = f"/persistent/{namespace}/t"
    root.do("PUT", f"{path}/partitions", 2)
    root.do("POST", f"/namespaces/{namespace}/permissions/orders", ["produce"])
    root.do("POST", f"{path}/permissions/orders", ["consume"])
    for each in (path, f"{path}-partition-1"):
        assert root.do("GET", f"{each}/permissions") == {"orders": ["produce", "consume"]}
    root.do("DELETE", f"{path}/permissions/orders")
    again = root.ask("DELETE", f"{path}/permissions/orders")
    assert (again.status_code, again.json()) == (412, {"reason": "Permissions are not set at the topic level"})
    root.do("POST", f"{path}/permissions/orders", ["consume"])
    root.do("DELETE", f"{path}/partitions?force=true")
    assert root.do("GET", f"{path}/permissions") == {"orders": ["produce"]}


def test_permissions_of_subscriptions(root: Admin, namespace: str) -> None:
    path = f"/namespaces/{namespace}/permissions"
    root.do("POST", f"{path}/subscription/s", ["a", "b"])
    assert root.do("GET", f"{path}/subscription") == {"s": ["a", "b"]}
    root.do("DELETE", f"{path}/s/a")
    assert root.do("GET", f"{path}/subscription") == {"s": ["b"]}
    assert root.ask("DELETE", f"{path}/other/a").status_code == 412
    assert root.ask("POST", f"{path}/subscription/s", []).status_code == 412
    assert root.do("GET", f"/namespaces/{namespace}/subscriptionAuthMode") == "None"
    root.do("POST", f"/namespaces/{namespace}/subscriptionAuthMode", "Prefix")
    assert root.do("GET", f"/namespaces/{namespace}/subscriptionAuthMode") == "Prefix"


def test_a_namespace_is_created_with_permissions(root: Admin, namespace: str) -> None:
    topic = f"persistent://{namespace}-2/t"
    granted = {
        "namespace_auth": {"a": ["produce", "consume"]},
        "destination_auth": {topic: {"b": ["consume"]}},
        "subscription_auth_roles": {"s": ["a"]},
    }
    body = {"auth_policies": granted, "subscription_auth_mode": "Prefix"}
    for wrong, status in (
        ({"auth_policies": {"namespace_auth": {"a": ["write"]}}}, 400),
        ({"auth_policies": {"namespace_auth": {"": ["produce"]}}}, 412),
        ({"auth_policies": {"destination_auth": {"persistent://other/n/t": {"a": ["produce"]}}}}, 412),
        ({"subscription_auth_mode": "Suffix"}, 400),
    ):
        assert root.ask("PUT", f"/namespaces/{namespace}-2", wrong).status_code == status
    root.do("PUT", f"/namespaces/{namespace}-2", body)
    found = root.do("GET", f"/namespaces/{namespace}-2")
    assert {key: found[key] for key in body} == body
    assert root.do("GET", f"/persistent/{namespace}-2/t/permissions") == {"a": ["produce", "consume"], "b": ["consume"]}
    assert "auth_policies" not in root.do("GET", f"/namespaces/{namespace}")


def test_a_tenants_administrator_rules_it_and_nothing_else(broker: RunningBroker, root: Admin, namespace: str) -> None:
    keeper = Admin(broker, "keeper")
    keeper.do("PUT", f"/namespaces/{namespace}-2")
    keeper.do("POST", f"/namespaces/{namespace}-2/permissions/orders", ["produce"])
    keeper.do("PUT", f"/persistent/{namespace}-2/t")
    keeper.do("POST", f"/persistent/{namespace}-2/t/terminate")
    keeper.do("DELETE", f"/namespaces/{namespace}-2?force=true")
    for status, method, path in (
        (401, "GET", "/tenants"),
        (401, "PUT", "/namespaces/public/mine"),
        (403, "POST", "/namespaces/public/default/permissions/keeper"),
        (401, "GET", "/brokers/configuration/runtime"),
        (401, "PUT", f"/namespaces/{namespace}/unload"),
    ):
        refused = keeper.ask(method, path)
        assert (refused.status_code, "keeper" in refused.json()["reason"]) == (status, True)


def test_a_new_administrator_rules_at_once(broker: RunningBroker, root: Admin, topic: str) -> None:
    root.do("PUT", f"/tenants/{topic}", {"adminRoles": ["first"]})
    Admin(broker, "first").do("PUT", f"/namespaces/{topic}/n")
    root.do("POST", f"/tenants/{topic}", {"adminRoles": ["second"]})
    assert Admin(broker, "first").ask("GET", f"/namespaces/{topic}").status_code == 401
    assert Admin(broker, "second").do("GET", f"/namespaces/{topic}") == [f"{topic}/n"]


def test_a_refused_request_is_not_read(broker: RunningBroker, namespace: str) -> None:
    stranger = Admin(broker, "stranger")
    for path in (
        f"/namespaces/{namespace}/retention",
        "/namespaces/shop/absent/retention",
        f"/namespaces/{namespace}/offloadPolicies",
    ):
        malformed = stranger._http.post(path, content=b"{" * 100)
        assert malformed.status_code == 403, "neither 400, nor 404, nor 501"
    assert stranger.ask("GET", f"/persistent/{namespace}/absent/stats").status_code == 401
    assert httpx.put(f"{broker.web_url}/admin/v2/namespaces/{namespace}/x", timeout=LIMIT_S).status_code == 401


def test_a_missing_tenant_is_reported_to_every_role_and_to_no_other_client(broker: RunningBroker) -> None:
    path = "/namespaces/absent/n/autoTopicCreation"
    for role in ("root", "stranger"):
        missing = Admin(broker, role).ask("POST", path, {"allowAutoTopicCreation": True})
        assert (missing.status_code, missing.json()) == (404, {"reason": "Tenant does not exist"})
    assert Admin(broker, "stranger").ask("GET", "/tenants/absent").status_code == 401
    answers = [
        httpx.get(f"{broker.web_url}/admin/v2/namespaces/{tenant}", headers=headers, timeout=LIMIT_S)
        for headers in ({}, {"Authorization": "Bearer no.valid.token"})
        for tenant in ("public", "absent")
    ]
    assert {(each.status_code, each.text) for each in answers} == {(401, '{"reason":"Authentication required"}')}


def test_a_proxy_and_its_client_must_both_be_allowed(broker: RunningBroker) -> None:
    """Only a proxy speaks for others (CVE-2023-30428)."""
    proxy, stranger = Admin(broker, "proxy"), Admin(broker, "stranger")
    name = "X-Original-Principal"
    assert proxy.ask("GET", "/tenants", None, **{name: "root"}).status_code == 200
    assert proxy.ask("GET", "/tenants", None, **{name: "stranger"}).status_code == 401
    assert stranger.ask("GET", "/tenants", None, **{name: "root"}).status_code == 401


# -- official clients --------------------------------------------------------------------------------------------------


def test_what_is_granted_works_and_nothing_else(broker: RunningBroker, root: Admin, namespace: str) -> None:
    topic = f"{namespace}/t"
    root.do("PUT", f"/persistent/{topic}")
    root.do("POST", f"/namespaces/{namespace}/permissions/writer", ["produce"])
    root.do("POST", f"/persistent/{topic}/permissions/reader", ["consume"])
    writing, reading, strange = (client(broker, role) for role in ("writer", "reader", "stranger"))
    consumer = reading.subscribe(topic, "s")
    writing.create_producer(topic).send(b"granted")
    assert consumer.receive(LIMIT_S * 1000).data() == b"granted"
    assert reading.create_reader(topic, pulsar.MessageId.earliest).read_next(LIMIT_S * 1000).data() == b"granted"
    assert is_refused(lambda: writing.subscribe(topic, "s2"))
    assert is_refused(lambda: reading.create_producer(topic))
    assert is_refused(lambda: reading.subscribe(f"{namespace}/other", "s"))
    assert is_refused(lambda: strange.create_producer(topic))
    assert is_refused(lambda: strange.subscribe(topic, "s3"))
    for each in (writing, reading, strange):
        each.close()


def test_a_namespaces_and_a_topics_prefix_mode(broker: RunningBroker, root: Admin, namespace: str) -> None:
    root.do("POST", f"/namespaces/{namespace}/permissions/reader", ["consume"])
    root.do("POST", f"/namespaces/{namespace}/subscriptionAuthMode", "Prefix")
    reading = client(broker, "reader")
    assert is_refused(lambda: reading.subscribe(f"{namespace}/t", "other"))
    reading.subscribe(f"{namespace}/t", "reader-1")
    reading.close()


def test_what_acts_on_all_subscriptions_needs_a_right_to_each(
    broker: RunningBroker, root: Admin, namespace: str
) -> None:
    """It is refused as a whole, before anything changes."""
    root.do("POST", f"/namespaces/{namespace}/permissions/consumer", ["consume"])
    root.do("POST", f"/namespaces/{namespace}/permissions/subscription/payroll", ["boss"])
    root.do("PUT", f"/persistent/{namespace}/p/partitions", 2)
    for name in ("free", "payroll"):
        root.do("PUT", f"/persistent/{namespace}/p/subscription/{name}", {"ledgerId": -1, "entryId": -1})
    sending = client(broker, "root")
    producer = sending.create_producer(f"{namespace}/p")
    for number in range(4):
        producer.send(b"%d" % number)
    sending.close()
    consumer = Admin(broker, "consumer")

    def backlogs() -> dict[str, int]:
        found = root.do("GET", f"/persistent/{namespace}/p/partitioned-stats")["subscriptions"]
        return {name: each["msgBacklog"] for name, each in found.items()}

    everything = (
        (403, f"/namespaces/{namespace}/clearBacklog"),
        (401, f"/persistent/{namespace}/p/all_subscription/expireMessages/0"),
    )
    both = {"free": 4, "payroll": 4}
    for status, path in (
        *everything,
        (403, f"/namespaces/{namespace}/clearBacklog/payroll"),
        (403, f"/namespaces/{namespace}/unsubscribe/payroll"),
    ):
        refused = consumer.ask("POST", path)
        assert (refused.status_code, "'payroll'" in refused.json()["reason"]) == (status, True), path
        assert backlogs() == both
    root.do("DELETE", f"/namespaces/{namespace}/permissions/payroll/boss")
    root.do("POST", f"/namespaces/{namespace}/subscriptionAuthMode", "Prefix")
    for status, path in everything:
        assert consumer.ask("POST", path).status_code == status
    assert backlogs() == both
    consumer.do("PUT", f"/persistent/{namespace}/p/subscription/consumer-1", {"ledgerId": -1, "entryId": -1})
    consumer.do("POST", f"/namespaces/{namespace}/clearBacklog/consumer-1")
    assert backlogs() == both | {"consumer-1": 0}
    root.do("POST", f"/namespaces/{namespace}/subscriptionAuthMode", "None")
    consumer.do("POST", everything[1][1])
    assert backlogs() == {"free": 0, "payroll": 0, "consumer-1": 0}


def revoke_by_http(root: Admin, broker: RunningBroker, namespace: str) -> None:
    root.do("DELETE", f"/namespaces/{namespace}/permissions/both")


def revoke_in_the_root(root: Admin, broker: RunningBroker, namespace: str) -> None:
    permissions.revoke_permission(Root.open(broker.root).store, namespace, "both")


def revoke_by_other_actions(root: Admin, broker: RunningBroker, namespace: str) -> None:
    root.do("POST", f"/namespaces/{namespace}/permissions/both", ["functions"])


@pytest.mark.parametrize("revoke", [revoke_by_http, revoke_in_the_root, revoke_by_other_actions])
@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
def test_a_revocation_ends_what_is_open(
    broker: RunningBroker,
    root: Admin,
    namespace: str,
    revoke: Callable[[Admin, RunningBroker, str], None],
    domain: str,
) -> None:
    root.do("POST", f"/namespaces/{namespace}/permissions/both", ["produce", "consume"])
    root.do("POST", f"/namespaces/{namespace}/permissions/other", ["produce", "consume"])
    topic = f"{domain}://{namespace}/t"
    ours, others = client(broker, "both"), client(broker, "other")
    opened = [
        ours.create_producer(topic),
        ours.subscribe(topic, "ours"),
        others.create_producer(topic),
        others.subscribe(topic, "others"),
    ]
    assert clients_of(root, domain, namespace) == (2, 2)
    revoke(root, broker, namespace)
    begun = time.monotonic()
    wait_until(lambda: clients_of(root, domain, namespace) == (1, 1))
    assert time.monotonic() - begun < SOON_S
    assert is_refused(lambda: ours.create_producer(topic))
    assert is_refused(lambda: ours.subscribe(topic, "again"))
    opened[2].send(b"others keep theirs")
    assert opened[3].receive(LIMIT_S * 1000).data() == b"others keep theirs"
    for each in (ours, others):
        each.close()


def clients_of(root: Admin, domain: str, namespace: str) -> tuple[int, int]:
    stats = root.do("GET", f"/{domain}/{namespace}/t/stats")
    return len(stats["publishers"]), sum(len(each["consumers"]) for each in stats["subscriptions"].values())


def test_a_consumer_whose_subscription_is_granted_to_others_is_disconnected(
    broker: RunningBroker, root: Admin, namespace: str
) -> None:
    root.do("POST", f"/namespaces/{namespace}/permissions/both", ["produce", "consume"])
    topic, ours = f"{namespace}/t", client(broker, "both")
    opened = [ours.create_producer(topic), ours.subscribe(topic, "s"), ours.subscribe(topic, "free")]
    assert clients_of(root, "persistent", namespace) == (1, 2)
    root.do("POST", f"/namespaces/{namespace}/permissions/subscription/s", ["other"])
    wait_until(lambda: clients_of(root, "persistent", namespace) == (1, 1))
    opened[0].send(b"goes to the other one")
    assert opened[2].receive(LIMIT_S * 1000).data() == b"goes to the other one"
    assert is_refused(lambda: ours.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared))
    ours.close()


def test_a_former_administrator_is_disconnected(broker: RunningBroker, root: Admin, topic: str) -> None:
    root.do("PUT", f"/tenants/{topic}", {"adminRoles": ["former"]})
    root.do("PUT", f"/namespaces/{topic}/n")
    former = client(broker, "former")
    former.create_producer(f"{topic}/n/t")
    root.do("POST", f"/tenants/{topic}", {"adminRoles": []})
    wait_until(lambda: clients_of(root, "persistent", f"{topic}/n") == (0, 0))
    former.close()


# -- ids of another topic (CVE-2021-41571) -----------------------------------------------------------------------------


def test_message_ids_of_another_topic_show_nothing(broker: RunningBroker, root: Admin, namespace: str) -> None:
    secret, own = f"{namespace}/secret", f"{namespace}/own"
    everything = client(broker, "root")
    id_ = everything.create_producer(secret).send(b"secret")
    everything.create_producer(own).send(b"own")
    everything.close()
    root.do("POST", f"/persistent/{own}/permissions/reader", ["consume"])
    reader = Admin(broker, "reader")
    at = f"ledger/{id_.ledger_id()}/entry/{id_.entry_id()}"
    assert root.ask("GET", f"/persistent/{secret}/{at}").content.endswith(b"secret")
    assert reader.ask("GET", f"/persistent/{secret}/{at}").status_code == 401
    assert reader.ask("GET", f"/persistent/{own}/{at}").status_code == 404
    place = {"ledgerId": id_.ledger_id(), "entryId": id_.entry_id()}
    reader.do("PUT", f"/persistent/{own}/subscription/s", place)
    reading = client(broker, "reader")
    consumer = reading.subscribe(own, "s")
    seen = [reading.create_reader(own, id_, start_message_id_inclusive=True), consumer]
    consumer.seek(id_)
    contents = set()
    for each in seen:
        receive = each.read_next if isinstance(each, pulsar.Reader) else each.receive
        try:
            contents.add(receive(1000).data())
        except pulsar.Timeout:
            continue
    assert contents <= {b"own"}
    reading.close()


# -- raw sockets -------------------------------------------------------------------------------------------------------


def conversation(broker: RunningBroker, role: str, *said: bytes) -> list[BaseCommand]:
    """The broker's answers to each."""

    async def scene() -> BaseCommand:
        reader, writer = await connect(broker.url, token=token(role))
        heard = []
        for each in said:
            writer.write(each)
            heard.append(await answer(reader))
        writer.close()
        return heard

    return asyncio.run(asyncio.wait_for(scene(), LIMIT_S))


def asked_of(topic: str, namespace: str) -> list[tuple[str, bytes]]:
    schema = Schema(name="", type=Schema.String, schema_data=b"")
    return [
        ("Lookup", command("LOOKUP", lookupTopic=CommandLookupTopic(topic=topic, request_id=1))),
        (
            "Get Partition Metadata",
            command(
                "PARTITIONED_METADATA", partitionMetadata=CommandPartitionedTopicMetadata(topic=topic, request_id=1)
            ),
        ),
        ("Produce", command("PRODUCER", producer=CommandProducer(topic=topic, producer_id=1, request_id=1))),
        (
            "subscribe",
            command(
                "SUBSCRIBE",
                subscribe=CommandSubscribe(
                    topic=topic, subscription="s", subType=CommandSubscribe.Shared, consumer_id=1, request_id=1
                ),
            ),
        ),
        (
            "GetTopicsOfNamespace",
            command(
                "GET_TOPICS_OF_NAMESPACE",
                getTopicsOfNamespace=CommandGetTopicsOfNamespace(request_id=1, namespace=namespace),
            ),
        ),
        ("watchTopicList", watching(namespace)),
        ("GetSchema", command("GET_SCHEMA", getSchema=CommandGetSchema(request_id=1, topic=topic))),
        (
            "GetOrCreateSchema",
            command(
                "GET_OR_CREATE_SCHEMA",
                getOrCreateSchema=CommandGetOrCreateSchema(request_id=1, topic=topic, schema=schema),
            ),
        ),
    ]


def watching(namespace: str) -> bytes:
    body = CommandWatchTopicList(request_id=1, watcher_id=1, namespace=namespace, topics_pattern=f"{namespace}/.*")
    return command("WATCH_TOPIC_LIST", watchTopicList=body)


def test_refusals_have_pulsars_words(broker: RunningBroker, namespace: str) -> None:
    for sentence, asked in asked_of(f"{namespace}/t", namespace):
        (refused,) = conversation(broker, "stranger", asked)
        (found,) = [value for _, value in refused.ListFields()[1:]]
        given = {field.name: value for field, value in found.ListFields()}
        assert given.get("error_code", given.get("error")) == ServerError.AuthorizationError
        assert given.get("error_message", given.get("message")) == f"Client is not authorized to {sentence}"


def test_refused_requests_do_not_fill_the_log(broker: RunningBroker, namespace: str) -> None:
    asked = command("LOOKUP", lookupTopic=CommandLookupTopic(topic=f"{namespace}/t", request_id=1))
    before = broker.said.count(" is refused: ")
    assert len(conversation(broker, "stranger", *[asked] * 100)) == 100
    assert broker.said.count(" is refused: ") - before == LINES


def test_only_super_users_publish_as_replicators(broker: RunningBroker, root: Admin, namespace: str) -> None:
    """A replicator passes exclusive producers, limits, rates and schema rules by."""
    root.do("PUT", f"/persistent/{namespace}/t")
    root.do("POST", f"/namespaces/{namespace}/permissions/writer", ["produce"])

    def answered(role: str, name: str) -> BaseCommand:
        body = CommandProducer(topic=f"{namespace}/t", producer_id=1, request_id=1, producer_name=name)
        return conversation(broker, role, command("PRODUCER", producer=body))[0]

    for role in ("writer", "keeper"):
        assert answered(role, "pulsar.replicas").type == BaseCommand.PRODUCER_SUCCESS
        refused = answered(role, "pulsar.repl.a-->b")
        assert (refused.type, refused.error.error) == (BaseCommand.ERROR, ServerError.AuthorizationError)
        assert role in refused.error.message
        assert "pulsar.repl." in refused.error.message
    assert answered("root", "pulsar.repl.a-->b").type == BaseCommand.PRODUCER_SUCCESS


def test_a_watcher_whose_right_is_revoked_sees_no_more_topics(
    broker: RunningBroker, root: Admin, namespace: str
) -> None:
    root.do("POST", f"/namespaces/{namespace}/permissions/watcher", ["consume"])

    async def scene() -> list[str]:
        reader, writer = await connect(broker.url, token=token("watcher"))
        writer.write(watching(namespace))
        assert (await answer(reader)).type == BaseCommand.WATCH_TOPIC_LIST_SUCCESS
        await asyncio.to_thread(root.do, "PUT", f"/persistent/{namespace}/one")
        seen = list((await answer(reader)).watchTopicUpdate.new_topics)
        before = broker.said.count("Permissions were revoked")
        await asyncio.to_thread(root.do, "DELETE", f"/namespaces/{namespace}/permissions/watcher")
        await asyncio.to_thread(wait_until, lambda: broker.said.count("Permissions were revoked") > before)
        others, other = await connect(broker.url, token=token("root"))
        other.write(watching(namespace))
        assert (await answer(others)).type == BaseCommand.WATCH_TOPIC_LIST_SUCCESS
        await asyncio.to_thread(root.do, "PUT", f"/persistent/{namespace}/two")
        assert (await answer(others)).type == BaseCommand.WATCH_TOPIC_UPDATE
        other.close()
        writer.write(
            command(
                "LOOKUP",
                lookupTopic=CommandLookupTopic(topic="pulsar/system/transaction_coordinator_assign", request_id=2),
            )
        )
        last = await answer(reader)
        assert last.type == BaseCommand.LOOKUP_RESPONSE, "and no update before it"
        writer.close()
        return seen

    assert asyncio.run(asyncio.wait_for(scene(), LIMIT_S)) == [TopicName.parse(f"{namespace}/one").full]


def test_a_client_whose_right_is_revoked_does_not_seek_either(
    broker: RunningBroker, root: Admin, namespace: str
) -> None:
    """The broker disconnects consumers for a seek, and lets their clients seek again before they reconnect."""
    root.do("POST", f"/namespaces/{namespace}/permissions/seeker", ["consume"])
    subscribe = CommandSubscribe(
        topic=f"{namespace}/t", subscription="s", subType=CommandSubscribe.Exclusive, consumer_id=1, request_id=1
    )

    def seeking(request_id: int) -> bytes:
        return command("SEEK", seek=CommandSeek(consumer_id=1, request_id=request_id, message_publish_time=0))

    async def scene() -> BaseCommand:
        reader, writer = await connect(broker.url, token=token("seeker"))
        writer.write(command("SUBSCRIBE", subscribe=subscribe))
        assert (await answer(reader)).type == BaseCommand.SUCCESS
        writer.write(seeking(2) + seeking(3))
        found = [await answer(reader) for _ in range(3)]
        assert sorted(each.type for each in found) == sorted(
            (BaseCommand.CLOSE_CONSUMER, BaseCommand.SUCCESS, BaseCommand.SUCCESS)
        )
        await asyncio.to_thread(root.do, "DELETE", f"/namespaces/{namespace}/permissions/seeker")
        writer.write(seeking(4))
        refused = await answer(reader)
        writer.close()
        return refused

    refused = asyncio.run(asyncio.wait_for(scene(), LIMIT_S))
    assert (refused.type, refused.error.error) == (BaseCommand.ERROR, ServerError.AuthorizationError)


@pytest.mark.parametrize("name", ["shop", "pulsar", "shop/", "shop/n/t", ""])
def test_only_topics_of_one_namespace_are_listed(broker: RunningBroker, namespace: str, name: str) -> None:
    listing = CommandGetTopicsOfNamespace(request_id=1, namespace=name)
    for role in ("root", "keeper"):
        for asking in (command("GET_TOPICS_OF_NAMESPACE", getTopicsOfNamespace=listing), watching(name)):
            assert conversation(broker, role, asking)[0].type == BaseCommand.ERROR


def test_a_new_namespace_has_no_policies_that_its_creator_may_not_set(
    broker: RunningBroker, root: Admin, namespace: str
) -> None:
    tenants_own, keeper = {"message_ttl_in_seconds": 60}, Admin(broker, "keeper")
    rate = {
        "publishMaxMessageRate": {"standalone": {"publishThrottlingRateInMsg": 10, "publishThrottlingRateInByte": 0}}
    }
    delayed = {"delayed_delivery_policies": {"active": True, "tickTime": 1000}}
    for body in (rate, delayed):
        assert keeper.ask("PUT", f"/namespaces/{namespace}-more", tenants_own | body).status_code == 401
    assert f"{namespace}-more" not in root.do("GET", "/namespaces/shop")
    keeper.do("PUT", f"/namespaces/{namespace}-more", tenants_own)
    root.do("PUT", f"/namespaces/{namespace}-rate", rate)


# -- settings ----------------------------------------------------------------------------------------------------------


def test_authorization_needs_authentication(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="authorization_enabled needs authentication_enabled"):
        RunningBroker(tmp_path / "root", {"authorization_enabled": "true"})
