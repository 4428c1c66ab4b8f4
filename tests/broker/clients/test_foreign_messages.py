"""Messages of a topic by the paths of another one: a ledger's id opens nothing but its own topic (CVE-2021-41571)."""

from __future__ import annotations

import httpx
import pulsar
import pytest

from .conftest import WAIT_MS


@pytest.mark.parametrize("domain", ["topic", "partition"])
def test_a_ledger_is_read_by_its_own_topic_only(
    admin: httpx.Client, client: pulsar.Client, topic: str, domain: str
) -> None:
    others = f"{topic}-others"
    if domain == "partition":
        admin.put(f"/persistent/public/default/{others}/partitions", json=2).raise_for_status()
        others += "-partition-0"
    found = client.create_producer(topic).send(b"private")
    client.create_producer(others).send(b"public")
    own, foreign = (f"/persistent/public/default/{name}" for name in (topic, others))
    place = f"ledger/{found.ledger_id()}/entry/{found.entry_id()}"
    assert admin.get(f"{own}/{place}").content == b"private"
    answer = admin.get(f"{foreign}/{place}")
    assert answer.is_client_error
    assert b"private" not in answer.content


def test_a_foreign_message_id_moves_a_subscription_to_its_own_messages(client: pulsar.Client, topic: str) -> None:
    others = f"{topic}-others"
    foreign = client.create_producer(topic).send(b"private")
    client.create_producer(others).send(b"public")
    consumer = client.subscribe(others, "s", initial_position=pulsar.InitialPosition.Earliest)
    consumer.seek(foreign)
    client.create_producer(others).send(b"public")
    assert consumer.receive(WAIT_MS).data() == b"public"
    reader = client.create_reader(others, foreign, start_message_id_inclusive=True)
    client.create_producer(others).send(b"public")
    assert reader.read_next(WAIT_MS).data() == b"public"
