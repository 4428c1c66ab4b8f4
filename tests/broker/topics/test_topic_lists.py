"""Topic lists for clients with regular expressions."""

from __future__ import annotations

from pulsar_on_spark.broker.topics.topic_lists import hash_of, list_topics

NAMES = [
    "persistent://public/default/b",
    "persistent://public/default/a-partition-1",
    "persistent://public/default/a-partition-0",
    "non-persistent://public/default/n",
    "persistent://public/default/__change_events",
    "persistent://public/other/c",
    "persistent://pulsar/system/x",
]


def test_only_the_namespaces_own_topics_are_listed_and_sorted() -> None:
    persistent = [f"persistent://public/default/{local}" for local in ("a-partition-0", "a-partition-1", "b")]
    assert list_topics(NAMES, "public/default", "PERSISTENT").topics == persistent
    assert list_topics(NAMES, "public/default", "NON_PERSISTENT").topics == ["non-persistent://public/default/n"]
    assert list_topics(NAMES * 2, "public/default", "ALL").topics == ["non-persistent://public/default/n", *persistent]
    assert list_topics(NAMES, "pulsar/system", "ALL").topics == []


def test_a_client_with_the_current_hash_gets_no_list() -> None:
    first = list_topics(NAMES, "public/default", "PERSISTENT")
    assert first.changed
    again = list_topics(reversed(NAMES), "public/default", "PERSISTENT", first.topics_hash)
    assert (again.topics, again.topics_hash, again.changed) == ([], first.topics_hash, False)
    more = list_topics([*NAMES, "persistent://public/default/z"], "public/default", "PERSISTENT", first.topics_hash)
    assert more.changed
    assert len(more.topics) == 4


def test_the_hash_is_guavas() -> None:
    # CRC32C("123456789") = 0xe3069283 (RFC 3720); Guava's HashCode prints the lowest byte first.
    assert hash_of(["123456789"]) == "839206e3"
    assert hash_of(["b", "a"]) == hash_of(["a", "b"])
    assert hash_of([]) == "00000000"
