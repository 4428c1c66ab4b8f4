"""Names against the golden vectors of Pulsar's own parser."""

from __future__ import annotations

import json
import re
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.model.names import TopicName, check_new_name, check_new_properties, check_subscription_name

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "topic_names.json").read_text("utf-8"))["vectors"]
NO_BASE = {"-partition-3"}
"""Pulsar reads it as partition 3 of a topic without a name; we refuse it."""


def has_control(name: str) -> bool:
    return any(unicodedata.category(letter) == "Cc" for letter in name)


@pytest.mark.parametrize("vector", GOLDEN, ids=lambda vector: ascii(vector["name"]))
def test_names_are_accepted_and_refused_as_in_pulsar(vector: dict[str, object]) -> None:
    name = str(vector["name"])
    if "error" in vector or has_control(name) or name in NO_BASE:
        with pytest.raises(InvalidArgumentError, match=re.escape(repr(name))):
            TopicName.parse(name)
        return
    topic = TopicName.parse(name)
    full = str(vector["full"]).replace("Persistent://", "persistent://")
    assert topic.full == str(topic) == full
    assert (topic.tenant, topic.namespace, topic.local) == (vector["tenant"], vector["namespace"], vector["local"])
    assert topic.partition_index == vector["partition_index"]
    assert topic.partitioned_base.full == str(vector["partitioned_base"]).replace("Persistent://", "persistent://")
    assert topic.partition(7).full == str(vector["partition_7"]).replace("Persistent://", "persistent://")


def test_short_and_full_forms_are_one_topic() -> None:
    assert (
        TopicName.parse("x") == TopicName.parse("public/default/x") == TopicName.parse("persistent://public/default/x")
    )
    assert len({TopicName.parse("x"), TopicName.parse("persistent://public/default/x")}) == 1


def test_a_non_persistent_name_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="a non-persistent topic exists only in a broker's memory"):
        TopicName.parse("non-persistent://t/n/x")


def test_a_broker_reads_names_of_both_domains() -> None:
    name = TopicName.parse_any("non-persistent://t/n/x")
    assert not name.is_persistent
    assert name.full == "non-persistent://t/n/x"
    assert name.partition(3).full == "non-persistent://t/n/x-partition-3"
    assert name.partition(3).partitioned_base == name
    assert name != TopicName.parse_any("t/n/x")


def test_system_topics_are_known_by_their_names() -> None:
    for name in ("__change_events", "__change_events-partition-0", "pulsar/system/x", "non-persistent://a/b/__x"):
        assert TopicName.parse_any(name).is_system
    for name in ("t", "a/__b/t", "pulsar/other/x", "_t"):
        assert not TopicName.parse_any(name).is_system


def test_a_partition_knows_its_topic() -> None:
    partition = TopicName.parse("t/n/x").partition(12)
    assert partition == TopicName.parse("t/n/x-partition-12")
    assert partition.partition_index == 12
    assert partition.partitioned_base == TopicName.parse("t/n/x")
    with pytest.raises(InvalidArgumentError):
        partition.partition(-1)


LOCAL = st.text(st.characters(categories=("L", "N", "P", "S", "Zs"), exclude_characters="/"), min_size=1, max_size=20)
LOCAL_OF_PARTITION = st.builds("{}-partition-{}".format, LOCAL, st.integers(0, 99))


@given((LOCAL | LOCAL_OF_PARTITION).filter(lambda local: local.strip() != "" and "://" not in local))
def test_any_accepted_name_survives_its_full_form(name: str) -> None:
    topic = TopicName.parse(name)
    assert TopicName.parse(topic.full) == topic
    assert TopicName.parse(topic.partition(3).full).partitioned_base == topic


@pytest.mark.parametrize("name", ["reports", "pulsar.repo", "a b", "müller", "compaction"])
def test_subscription_names_that_users_may_have(name: str) -> None:
    assert check_subscription_name(name) == name


@pytest.mark.parametrize(
    "name", ["", "pulsar.repl", "pulsar.repl.west", "pulsar.dedup", "__compaction", "a\nb", "a\x00"]
)
def test_subscription_names_that_are_refused(name: str) -> None:
    with pytest.raises(InvalidArgumentError):
        check_subscription_name(name)


@pytest.mark.parametrize("name", ["n" * 1_024, "ü" * 512, "a name of spaces", "日本", "a\u00a0b"])
def test_a_new_name_of_up_to_1024_bytes(name: str) -> None:
    assert check_new_name("Subscription name", name) == name


@pytest.mark.parametrize(
    "name", ["n" * 1_025, "ü" * 513, "a\u2028b", "a\u2029b", "a\x00b", "user\u202etxt.exe", "\u200fa"]
)
def test_a_new_name_that_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"^Subscription name ") as refused:
        check_new_name("Subscription name", name)
    assert len(str(refused.value)) < 300


def test_new_properties_are_bounded() -> None:
    check_new_properties("It", {str(number): "v" for number in range(64)})
    check_new_properties("It", {"k": "v" * (16_384 - 1)})
    for properties in ({str(number): "v" for number in range(65)}, {"k": "v" * 16_384}, {"k": "ü" * 8_192}):
        with pytest.raises(InvalidArgumentError, match="give at most 64 of 16384 bytes together"):
            check_new_properties("It", properties)
