"""A whole broker in the process of the tests, which reach its parts or make them fail."""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pulsar
import pytest

from pulsar_on_spark.broker.broker import Broker
from pulsar_on_spark.broker.runtime.access import Challenge, Hello, Login, OpenAccess
from pulsar_on_spark.broker.runtime.ports import check_reach
from pulsar_on_spark.broker.runtime.server_errors import BUG_REASON
from pulsar_on_spark.broker.runtime.settings import BrokerSettings
from pulsar_on_spark.broker.topics.topic import BrokerTopic
from pulsar_on_spark.broker.topics.topic_watch import TopicWatch
from pulsar_on_spark.broker.web.server import WebServer
from pulsar_on_spark.metadata.records import IncarnationRecord
from pulsar_on_spark.model.errors import (
    AccessDeniedError,
    InvalidArgumentError,
    MetadataError,
    PulsarpyError,
    StorageError,
)
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.protocol.commands import (
    AuthData,
    BaseCommand,
    CommandAuthResponse,
    CommandConnect,
    CommandGetTopicsOfNamespace,
    CommandLookupTopic,
    ServerError,
)
from pulsar_on_spark.root import Root
from pulsar_on_spark.security.principal import Principal
from pulsar_on_spark.topic.managed_ledger.incarnation.incarnation import Incarnation
from pulsar_on_spark.topic.managed_ledger.incarnation.ledger_commits import LedgerCommits
from tests.kit.waiting import wait_until

from .clients.raw import answer, command

LIMIT_S = 60
T = TypeVar("T")
SETTINGS = BrokerSettings(broker_service_port=0, web_service_port=0)


class Running:
    """A broker on an event loop in a thread."""

    def __init__(self, root: Path) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.broker = self.do(Broker.start(root, SETTINGS))

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(LIMIT_S)

    def stop(self) -> None:
        self.do(self.broker.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(LIMIT_S)
        self._loop.close()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    made = Running(tmp_path_factory.mktemp("running") / "root")
    yield made
    made.stop()


def test_a_start_that_fails_late_stops_its_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "root"
    before = set(multiprocessing.active_children())

    async def fail(self: WebServer, *given: object) -> None:
        raise StorageError("no")

    async def scene() -> set[asyncio.Task[Any]]:
        with pytest.raises(StorageError, match="no"):
            await Broker.start(root, SETTINGS)
        return asyncio.all_tasks() - {asyncio.current_task()}  # type: ignore[return-value]

    with monkeypatch.context() as failing:
        failing.setattr(WebServer, "start", fail)
        assert asyncio.run(scene()) == set()
    assert set(multiprocessing.active_children()) == before
    left = Root.open(root).store.view().all(IncarnationRecord)
    assert {record.state for record in left} <= {"CLOSED"}, "sealing may have deleted the record already"
    again = Running(root)
    again.stop()


def test_a_broker_that_other_hosts_reach_warns_at_each_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The starts fail because the path is not a root, so nothing is served to other hosts."""
    root = tmp_path / "root"
    root.write_text("not a folder")
    for _ in range(2):
        caplog.clear()
        with pytest.raises((PulsarpyError, OSError)):
            asyncio.run(Broker.start(root, SETTINGS.model_copy(update={"bind_address": "0.0.0.0"})))
        (warning,) = [record for record in caplog.records if "authenticates no client" in record.getMessage()]
        assert warning.levelname == "WARNING"
        assert "listens on 0.0.0.0" in warning.getMessage()


@pytest.mark.parametrize("bind_address", ["127.0.0.1", "127.1.2.3", "::1", "localhost", "broker.localhost"])
def test_a_broker_that_only_its_host_reaches_is_silent(bind_address: str, caplog: pytest.LogCaptureFixture) -> None:
    check_reach(BrokerSettings(bind_address=bind_address, advertised_address="broker-1.example.com"))
    assert caplog.records == []


@pytest.mark.parametrize("advertised", ["broker-1.example.com", "10.1.2.3", "fe80::1"])
def test_other_hosts_are_not_sent_to_an_address_that_is_not_listened_on(tmp_path: Path, advertised: str) -> None:
    settings = BrokerSettings(broker_service_port=0, web_service_port=0, advertised_address=advertised)
    with pytest.raises(InvalidArgumentError) as refused:
        asyncio.run(Broker.start(tmp_path / "root", settings))
    (sentence,) = str(refused.value).splitlines()
    assert sentence.startswith(f"Setting advertised_address is {advertised!r}, ")
    assert "set bind_address to '0.0.0.0'" in sentence
    assert sentence.count(". ") == 0
    assert not (tmp_path / "root").exists()


def test_an_unused_topic_is_unloaded_and_loaded_again_on_demand(running: Running) -> None:
    broker = running.broker
    client = pulsar.Client(broker.service_url)
    used = client.create_producer("used")
    client.subscribe("unused", "s").close()

    async def loaded_topics() -> list[str]:
        watch = TopicWatch(broker._views, broker._topics, forget_after_s=0)
        await watch.scan_metadata()
        return [topic.name.local for topic in broker._topics]

    wait_until(lambda: running.do(loaded_topics()) == ["used"])
    used.send(b"kept: its ledger is open")
    assert running.do(loaded_topics()) == ["used"]
    used.close()
    assert running.do(loaded_topics()) == ["used"], "its ledger is open still"
    reader = client.create_reader("used", pulsar.MessageId.earliest)
    assert reader.read_next(LIMIT_S * 1000).data() == b"kept: its ledger is open"
    client.create_producer("unused").send(b"loaded again")
    client.close()


# -- authentication ----------------------------------------------------------------------------------------------------


class Riddles(OpenAccess):
    """Authenticates with one challenge, as SASL does; the same answer later renews the credentials."""

    def login(self, hello: Hello) -> Login:
        if hello.method != "riddle":
            raise AccessDeniedError("Only riddles.")
        return Riddle()


class Riddle:
    async def step(self, data: bytes) -> Principal | Challenge:
        if data == b"begin":
            return Challenge(b"what has it got in its pocket?")
        if not data.startswith(b"ring of "):
            raise AccessDeniedError("Wrong.")
        return Principal(data.removeprefix(b"ring of ").decode())


@pytest.fixture
def riddles(running: Running, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(running.broker._web._services, "access", Riddles())
    return running.broker.service_url


def connecting(data: bytes, method: str = "riddle") -> bytes:
    body = CommandConnect(client_version="raw", protocol_version=21, auth_method_name=method, auth_data=data)
    return command("CONNECT", connect=body)


def responding(data: bytes) -> bytes:
    response = AuthData(auth_method_name="riddle", auth_data=data)
    return command("AUTH_RESPONSE", authResponse=CommandAuthResponse(response=response))


def looking_up() -> bytes:
    return command("LOOKUP", lookupTopic=CommandLookupTopic(topic="t", request_id=1))


def conversation(url: str, said: list[bytes]) -> list[BaseCommand]:
    """Send commands one by one; return the broker's answers, until it closes the connection."""

    async def scene() -> list[BaseCommand]:
        host, _, port = url.removeprefix("pulsar://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        answers = []
        try:
            for sent in said:
                writer.write(sent)
                answers.append(await answer(reader))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        writer.close()
        return answers

    return asyncio.run(asyncio.wait_for(scene(), LIMIT_S))


def test_a_client_may_be_challenged_before_it_is_authenticated(riddles: str) -> None:
    asked, connected, looked_up = conversation(
        riddles, [connecting(b"begin"), responding(b"ring of bilbo"), looking_up()]
    )
    assert asked.type == BaseCommand.AUTH_CHALLENGE
    assert asked.authChallenge.challenge.auth_data == b"what has it got in its pocket?"
    assert asked.authChallenge.challenge.auth_method_name == "riddle"
    assert connected.type == BaseCommand.CONNECTED
    assert looked_up.type == BaseCommand.LOOKUP_RESPONSE


@pytest.mark.parametrize(
    "said", [[connecting(b"wrong")], [connecting(b"begin"), responding(b"wrong")], [connecting(b"", "token")]]
)
def test_a_client_with_a_wrong_answer_is_refused(riddles: str, said: list[bytes]) -> None:
    last = conversation(riddles, said)[-1]
    assert last.error.error == ServerError.AuthenticationError


def test_commands_before_authentication_close_the_connection(riddles: str) -> None:
    assert len(conversation(riddles, [connecting(b"begin"), looking_up()])) == 1
    assert conversation(riddles, [responding(b"ring of bilbo")]) == []


def test_a_connection_keeps_its_role(riddles: str) -> None:
    proven = [connecting(b"begin"), responding(b"ring of bilbo")]
    *_, looked_up = conversation(riddles, [*proven, responding(b"ring of bilbo") + looking_up()])
    assert looked_up.type == BaseCommand.LOOKUP_RESPONSE
    *_, refused = conversation(riddles, [*proven, responding(b"ring of gollum")])
    assert refused.error.error == ServerError.AuthenticationError


# -- bugs in the broker ----------------------------------------------------------------------------------------------


async def fail_with_a_path() -> list[str]:
    """Raise an unexpected error whose text no client should see."""
    raise KeyError("/secret/path", object())


def test_a_bug_in_the_broker_is_answered_with_one_sentence_and_logged(
    running: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(running.broker._topics, "names", fail_with_a_path)
    over_http = httpx.get(f"{running.broker.web_url}/admin/v2/namespaces/public/default/topics", timeout=LIMIT_S)
    assert (over_http.status_code, over_http.json()) == (500, {"reason": BUG_REASON})
    listing = CommandGetTopicsOfNamespace(request_id=7, namespace="public/default")
    asked = command("GET_TOPICS_OF_NAMESPACE", getTopicsOfNamespace=listing)
    connected, refused, looked_up = conversation(running.broker.service_url, [connecting(b""), asked, looking_up()])
    assert connected.type == BaseCommand.CONNECTED
    assert (refused.error.request_id, refused.error.error) == (7, ServerError.UnknownError)
    assert refused.error.message == BUG_REASON
    assert looked_up.type == BaseCommand.LOOKUP_RESPONSE, "the connection serves its other requests"
    logged = [record.exc_info[0] for record in caplog.records if record.exc_info]
    assert logged.count(KeyError) >= 2, "operators see what clients do not"


def test_a_topic_whose_ledger_could_not_be_closed_is_loaded_completely(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deduplication and cursors rely on the chain: it must contain every entry with a receipt."""
    name = TopicName.parse("not-closed")
    client = pulsar.Client(running.broker.service_url)
    try:
        producer = client.create_producer(name.full, batching_enabled=False)
        for number in range(3):
            producer.send(b"%d" % number)
        producer.close()
    finally:
        client.close()
    commit = LedgerCommits.commit

    async def refused(self: LedgerCommits, **asked: object) -> object:
        if asked.get("closes"):
            raise MetadataError("The disk is full.")
        return await commit(self, **asked)  # type: ignore[arg-type]

    topics = running.broker._topics
    with monkeypatch.context() as failing:
        failing.setattr(Incarnation, "_commit", lambda self, **asked: refused(self._commits, **asked))
        running.do(topics.unload(name))
        with pytest.raises(MetadataError):
            running.do(topics.get(name, create=False))
    loaded = running.do(topics.get(name, create=False))
    assert isinstance(loaded, BrokerTopic)
    assert loaded.chain.entries_from(0, 0) == 3
