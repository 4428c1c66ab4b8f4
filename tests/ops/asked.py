"""Requests of admins to a broker that is killed meanwhile, each with a check of its effect."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import httpx
import pulsar
import pytest

from tests.broker.clients.conftest import WAIT_MS

SUBSCRIPTION = "s"
SENT = [b"%02d" % number for number in range(10)]
ACKNOWLEDGED = 4
"""Number of acknowledged messages. The client waits for no receipt: a killed broker may deliver them again."""
AFTER = b"after"
KEYS = 3
NOTHING_KEPT = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}


@dataclass(frozen=True, slots=True)
class Site:
    """A topic, and who looks at it."""

    topic: str
    client: pulsar.Client
    admin: httpx.Client

    def ask(self, method: str, path: str = "", body: object = None) -> httpx.Response:
        """Ask the broker for something of the topic."""
        return self.admin.request(method, f"/persistent/public/default/{self.topic}{path}", json=body)

    def prepare(self, asked: Asked) -> None:
        """Make the topic, send, and acknowledge a part."""
        made = self.ask("PUT", "/partitions", asked.partitions) if asked.partitions else self.ask("PUT")
        assert made.is_success, made.text
        for policy, value in asked.policies.items():
            assert self.ask("POST", f"/{policy}", value).is_success
        consumer = self.subscribe()
        producer = self.client.create_producer(self.topic)
        for number, value in enumerate(SENT):
            producer.send(value, partition_key=_key(number))
        for _ in range(ACKNOWLEDGED):
            consumer.acknowledge(consumer.receive(WAIT_MS))
        producer.close()
        consumer.close()

    def subscribe(self) -> pulsar.Consumer:
        """A consumer of the subscription."""
        return self.client.subscribe(self.topic, SUBSCRIPTION, initial_position=pulsar.InitialPosition.Earliest)

    def send_after(self) -> None:
        """Send one more message."""
        self.client.create_producer(self.topic).send(AFTER)

    def given(self, last: bytes) -> list[bytes]:
        """Return the messages that the subscription delivers up to a given one."""
        consumer, found = self.subscribe(), [b""]
        while found[-1] != last:
            message = consumer.receive(WAIT_MS)
            consumer.acknowledge(message)
            found.append(message.data())
        consumer.close()
        return found[1:]

    def stored(self, *, compacted: bool = False) -> list[list[bytes]]:
        """All that each partition holds."""
        return [self._read(each, compacted) for each in self.client.get_topic_partitions(self.topic)]

    def _read(self, partition: str, compacted: bool) -> list[bytes]:
        reader = self.client.create_reader(partition, pulsar.MessageId.earliest, is_read_compacted=compacted)
        found = []
        while reader.has_message_available():
            found.append(reader.read_next(WAIT_MS).data())
        reader.close()
        return found


@dataclass(frozen=True, slots=True)
class Asked:
    """A request.

    Attributes:
        method: Of HTTP.
        path: Behind the topic's.
        judge: Asserts that it is so.
        body: JSON.
        again: What is answered where it is so already, if that is an error.
        partitions: Of the topic.
        policies: Of the topic.
        has_ended: True if the work that continues after the answer has ended.
    """

    method: str
    path: str
    judge: Callable[[Site], None]
    body: object = None
    again: int = 204
    partitions: int = 0
    policies: Mapping[str, object] = field(default_factory=dict)
    has_ended: Callable[[Site], bool] = lambda _: True


def _key(number: int) -> str:
    return f"k{number % KEYS}"


def _tail(of: list[bytes], least: int) -> list[list[bytes]]:
    """Return each end of a list that has at least `least` elements."""
    return [of[first:] for first in range(len(of) - least + 1)]


def _gives_the_rest(site: Site) -> None:
    """The subscription has lost nothing."""
    site.send_after()
    assert site.given(AFTER) in _tail([*SENT, AFTER], len(SENT) + 1 - ACKNOWLEDGED)


def _is_as_before(site: Site) -> None:
    assert site.stored() == [SENT]
    _gives_the_rest(site)


def _is_trimmed(site: Site) -> None:
    (stored,) = site.stored()
    assert stored in _tail(SENT, len(SENT) - ACKNOWLEDGED)
    _gives_the_rest(site)


def _is_ended(site: Site) -> None:
    assert site.stored() == [SENT]
    assert site.given(SENT[-1]) in _tail(SENT, len(SENT) - ACKNOWLEDGED)
    with pytest.raises(pulsar.PulsarException, match="TopicTerminated"):
        site.send_after()


def _is_passed_over(site: Site) -> None:
    site.send_after()
    assert site.given(AFTER) == [AFTER]
    (stored,) = site.stored()
    assert stored in _tail([*SENT, AFTER], 1)


def _has_expired(site: Site) -> None:
    assert _has_no_backlog(site)
    (stored,) = site.stored()
    assert stored in _tail(SENT, 0)


def _begins_anew(site: Site) -> None:
    site.send_after()
    assert site.given(AFTER) == [*SENT, AFTER]


def _is_gone(site: Site) -> None:
    listed = site.admin.get("/persistent/public/default").json()
    assert not [each for each in listed if site.topic in each]


def _has_grown(site: Site) -> None:
    stored = site.stored()
    assert len(stored) == 3
    assert sorted(value for each in stored for value in each) == SENT
    assert all(each == sorted(each) for each in stored)


def _is_compacted(site: Site) -> None:
    assert site.stored(compacted=True) == [SENT[-KEYS:]]
    _is_as_before(site)


def _has_no_subscription(site: Site) -> None:
    assert site.ask("GET", "/subscriptions").json() == []
    assert site.stored() == [SENT]


def _compaction_has_ended(site: Site) -> bool:
    found = site.ask("GET", "/compaction").json()
    assert found["status"] != "ERROR", found
    return bool(found["status"] == "SUCCESS")


def _has_no_backlog(site: Site) -> bool:
    return bool(site.ask("GET", "/stats").json()["subscriptions"][SUBSCRIPTION]["msgBacklog"] == 0)


ASKED: Mapping[str, Asked] = {
    "terminate": Asked("POST", "/terminate", _is_ended),
    "unload": Asked("PUT", "/unload", _is_as_before),
    "truncate": Asked("DELETE", "/truncate", _is_passed_over),
    "trim": Asked("POST", "/trim", _is_trimmed, policies={"retention": NOTHING_KEPT}),
    "delete": Asked("DELETE", "?force=true", _is_gone, again=404),
    "delete-partitioned": Asked("DELETE", "/partitions?force=true", _is_gone, again=404, partitions=2),
    "grow": Asked("POST", "/partitions", _has_grown, body=3, again=412, partitions=2),
    "compact": Asked("PUT", "/compaction", _is_compacted, has_ended=_compaction_has_ended),
    "skip": Asked("POST", f"/subscription/{SUBSCRIPTION}/skip_all", _is_passed_over),
    "seek": Asked(
        "POST", f"/subscription/{SUBSCRIPTION}/resetcursor", _begins_anew, body={"ledgerId": -1, "entryId": -1}
    ),
    "unsubscribe": Asked("DELETE", f"/subscription/{SUBSCRIPTION}", _has_no_subscription, again=404),
    "age": Asked(
        "POST", "/messageTTL", _has_expired, body=1, policies={"retention": NOTHING_KEPT}, has_ended=_has_no_backlog
    ),
}
"""By name. The broker's upkeep has its part in the last, and in whatever it trims, merges and compacts meanwhile."""
