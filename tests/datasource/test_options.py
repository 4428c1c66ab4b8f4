"""Names, aliases, defaults, refusals: what users may ask for, without Spark."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark import SparkFiles

from pulsar_on_spark.datasource.option_names import (
    ALIASES,
    READ_OPTIONS,
    REFUSED,
    WRITE_OPTIONS,
    GivenOptions,
    warn_without_effect,
)
from pulsar_on_spark.datasource.options import ReadOptions, TopicSelection, WriteOptions, read_options, write_options
from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.storage.root_place import ObjectPlace


def read(**given: str) -> ReadOptions:
    return read_options({"path": "/data/root", "topic": "clicks"} | given)


def write(**given: str) -> WriteOptions:
    return write_options({"path": "/data/root"} | given)


def refused(match: str, **given: str) -> None:
    with pytest.raises(InvalidArgumentError, match=match):
        read(**given)


def test_defaults_of_a_read() -> None:
    found = read()
    assert found.root == Path("/data/root")
    assert found.topics == TopicSelection(names=("clicks",))
    assert (found.starting, found.ending, found.starting_time_ms, found.ending_time_ms) == (None,) * 4
    assert found.fail_on_data_loss
    assert not found.include_metadata
    assert found.subscription_type == "Exclusive"
    assert found.lease_duration_s == 10
    assert found.time_strategy == "error"
    assert found.typed.mode == "PERMISSIVE"


def test_defaults_of_a_write() -> None:
    found = write()
    assert (found.topic, found.hashing_scheme, found.txn_app_id) == (None, "JavaStringHash", None)


@pytest.mark.parametrize("alias", [name for name in ALIASES if ALIASES[name] in READ_OPTIONS])
def test_aliases_mean_their_option_in_any_case(alias: str) -> None:
    value = {"path": "/there", "includeMetadata": "true"}.get(ALIASES[alias], "7")
    others = {} if ALIASES[alias] in ("topics", "topicsPattern") else {"topic": "clicks"}
    if ALIASES[alias] != "path":
        others["path"] = "/data/root"
    found = [read_options(others | {name: value}) for name in (alias, alias.upper(), ALIASES[alias])]
    assert found[0] == found[1] == found[2] != read_options({"path": "/data/root", "topic": "clicks"})


def test_an_option_and_its_alias_must_agree() -> None:
    assert read(startingTime="5", startingTimestamp="5").starting_time_ms == 5
    refused(
        "startingTime and startingTimestamp are the same option with different values",
        startingTime="5",
        startingTimestamp="6",
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "none given"),
        ({"topic": "a", "topics": "b"}, "topic and topics given"),
        ({"topic": "a", "subscribe": "b"}, "topic and topics given"),
        ({"topics": "a", "topicsPattern": "b"}, "topics and topicsPattern given"),
        ({"topic": "a", "topics": "b", "topicsPattern": "c"}, "topic and topics and topicsPattern given"),
    ],
)
def test_exactly_one_selection_of_topics(given: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"Exactly one of the options .*: {said}"):
        read_options({"path": "/data/root"} | given)


def test_topics_are_separated_by_commas() -> None:
    found = read_options({"path": "/data/root", "topics": "a, persistent://t/n/b ,c"})
    assert found.topics.names == ("a", "persistent://t/n/b", "c")
    with pytest.raises(InvalidArgumentError, match="Option topics has the value 'a,,b'"):
        read_options({"path": "/data/root", "topics": "a,,b"})
    with pytest.raises(InvalidArgumentError, match="Option topic has the value ''"):
        read_options({"path": "/data/root", "topic": ""})


@pytest.mark.parametrize("name", list(REFUSED))
@pytest.mark.parametrize("parse", [read, write])
def test_features_to_come_and_less_durability_are_refused_by_name(name: str, parse: object) -> None:
    assert callable(parse)
    value = {"fsync": "false", "compressionType": "lz4"}.get(name, "1")
    with pytest.raises(InvalidArgumentError, match=f"Option {name} is not supported: .*leave it out"):
        parse(**{name.lower(): value})


def test_options_for_the_default_behaviour_are_accepted() -> None:
    assert write(fsync="true", compressionType="ZSTD") == write()


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("startingTime", "yesterday", "give a whole number from 0 on"),
        ("startingTime", "-1", "give a whole number from 0 on"),
        ("minPartitions", "0", "give a whole number from 1 on"),
        ("maxRecordsPerPartition", "1e3", "give a whole number from 1 on"),
        ("maxMessagesPerTrigger", "٣", "give a whole number from 1 on"),
        ("maxBytesPerTrigger", "9" * 19, "give a whole number from 1 on"),
        ("failOnDataLoss", "yes", "give one of true, false"),
        ("includeMetadata", "", "give one of true, false"),
        ("startingOffsetsByTimestampStrategy", "none", "give one of error, latest"),
        ("mode", "DROPMALFORMED", "give one of PERMISSIVE, FAILFAST"),
        ("leaseDuration", "soon", "give a length of time such as 10s"),
        ("leaseDuration", "0s", "give a length of time such as 10s"),
        ("leaseDuration", "1 fortnight", "give a length of time such as 10s"),
    ],
)
def test_values_that_cannot_be_used_name_option_value_and_remedy(name: str, value: str, said: str) -> None:
    extra = {"subscription": "s"} if name == "leaseDuration" else {}
    with pytest.raises(InvalidArgumentError) as caught:
        read(**{name: value}, **extra)
    assert f"Option {name} has the value {value!r}" in str(caught.value)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10", 10),
        ("10s", 10),
        ("500ms", 0.5),
        ("2 minutes", 120),
        ("1.5h", 5400),
        ("1 day", 86400),
        (" 3 SEC ", 3),
        ("250 milliseconds", 0.25),
    ],
)
def test_lengths_of_time(text: str, seconds: float) -> None:
    assert read(subscription="s", leaseDuration=text).lease_duration_s == pytest.approx(seconds)


@given(st.text(max_size=12))
def test_any_text_is_a_length_of_time_or_an_error_of_ours(text: str) -> None:
    try:
        seconds = GivenOptions({"maxTriggerDelay": text}).seconds("maxTriggerDelay", 1)
    except InvalidArgumentError:
        seconds = 1
    assert seconds > 0


def test_options_that_exclude_each_other() -> None:
    refused("startingOffsets and startingTime exclude", startingOffsets="earliest", startingTime="5")
    refused("endingOffsets and endingTime exclude", endingOffsets="latest", endingTimestamp="5")
    refused("subscription and subscriptionPrefix exclude", subscription="s", subscriptionPrefix="p")


@pytest.mark.parametrize("name", ["subscriptionType", "subscriptionInitialPosition", "consumerName"])
def test_options_of_a_subscription_need_one(name: str) -> None:
    refused(f"Option {name} is not possible here", **{name: "Shared"})


def test_reserved_subscription_names_are_refused() -> None:
    refused("pulsar.dedup", subscription="pulsar.dedup")


def test_typed_values_need_format_and_schema() -> None:
    refused("valueFormat and valueSchema belong together", valueFormat="json")
    refused("valueFormat and valueSchema belong together", valueSchema="a INT")
    refused("give one of json, avro", valueFormat="xml", valueSchema="a INT")


def test_a_transaction_needs_id_and_version() -> None:
    assert write(txnAppId="nightly", txnVersion="0").txn_version == 0
    with pytest.raises(InvalidArgumentError, match="txnAppId and txnVersion belong together"):
        write(txnAppId="nightly")


@pytest.mark.parametrize("name", ["topics", "topicsPattern", "subscribe"])
def test_a_write_goes_to_one_topic_or_to_the_rows_topics(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="of option topic, or of the column __topic"):
        write(**{name: "a"})


def test_the_root_comes_from_option_alias_or_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert read_options({"topic": "a", "service.url": f"file://{tmp_path}"}).root == tmp_path
    monkeypatch.delenv("PULSARPY_ROOT", raising=False)
    with pytest.raises(InvalidArgumentError, match=r"No root is given: use .load\(root\)"):
        read_options({"topic": "a"})
    monkeypatch.setenv("PULSARPY_ROOT", str(tmp_path))
    assert read_options({"topic": "a"}).root == tmp_path


def test_a_broker_as_root_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"\(or service.url\) is pulsar://host:6650, a broker's URL"):
        read_options({"topic": "a", "service.url": "pulsar://host:6650"})


def test_a_root_may_be_on_an_object_store() -> None:
    assert read_options({"topic": "a", "path": "s3://bucket/root"}).root == ObjectPlace("s3://bucket/root")
    given = {"topic": "a", "path": "s3a://bucket/root", "storageProfile": "lake"}
    assert write_options(given).root == ObjectPlace("s3://bucket/root", "lake")
    with pytest.raises(InvalidArgumentError, match="'hdfs://host/root' is no location of a root"):
        read_options({"topic": "a", "path": "hdfs://host/root"})


def test_a_root_that_would_go_with_the_session_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Workers of Spark Connect run in such a folder; what was written there was gone with the session."""
    monkeypatch.setenv("SPARK_PYTHON_RUNTIME", "PYTHON_WORKER")
    monkeypatch.setattr(SparkFiles, "_is_running_on_worker", True)
    monkeypatch.setattr(SparkFiles, "_root_directory", str(tmp_path / "session"))
    (tmp_path / "session").mkdir()
    monkeypatch.chdir(tmp_path / "session")
    refused("Option path is my-root, .* give the root's absolute path on the server", path="my-root")
    assert read(path=str(tmp_path / "my-root")).root == tmp_path / "my-root"


def test_each_option_without_effect_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    given = {
        "path": "/data/root",
        "topic": "a",
        "pulsar.client.iothreads": "4",
        "admin.url": "http://x",
        "mergeschema": "true",
        "hashingscheme": "JavaStringHash",
    }
    with caplog.at_level(logging.WARNING):
        warn_without_effect(given, "read")
    assert [record.getMessage() for record in caplog.records] == [
        "Options admin.url, pulsar.client.iothreads configure a Pulsar client and have no effect here.",
        "Option hashingScheme has no effect on a read.",
        "Option mergeschema is unknown to format pulsarpy and has no effect.",
    ]
    caplog.clear()
    warn_without_effect({name.lower(): "x" for name in WRITE_OPTIONS}, "write")
    warn_without_effect({name.lower(): "x" for name in READ_OPTIONS}, "read")
    assert caplog.records == []


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("startingOffset", "startingOffsets"),
        ("starting_offsets", "startingOffsets"),
        ("subscriptonName", "subscriptionName"),
        ("subscriptionTyp", "subscriptionType"),
        ("topicPattern", "topicsPattern"),
        ("txnVersions", "txnVersion"),
        ("acqQuorum", "ackQuorum"),
        ("paths", "path"),
    ],
)
def test_a_mistyped_option_is_an_error_in_both_directions(given: str, meant: str) -> None:
    for parse in (read, write):
        with pytest.raises(
            InvalidArgumentError, match=f"^Option {given} is unknown to format pulsarpy, .* give {meant}"
        ):
            parse(**{given: "1"})


@pytest.mark.parametrize(
    "name",
    [
        *(
            "mergeSchema",
            "compression",
            "header",
            "queryName",
            "timestampFormat",
            "maxFilesPerTrigger",
            "startingVersion",
        ),
        *("kafka.bootstrap.servers", "numPartitions", "includeTimestamp", "pulsar.consumer.subscriptionNames"),
    ],
)
def test_options_of_other_formats_are_no_error(name: str) -> None:
    assert read(**{name: "1"}) == read()
    assert write(**{name: "1"}) == write()
