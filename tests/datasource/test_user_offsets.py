"""`startingOffsets` and `endingOffsets` as users write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_on_spark.datasource.user_offsets import parse_ending_offsets, parse_starting_offsets
from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.model.ids import EntryId, LedgerId, MessageId, Position
from pulsar_on_spark.model.names import TopicName

T = TopicName.parse("t")


def at(ledger: int, entry: int) -> Position:
    return Position(LedgerId(ledger), EntryId(entry))


def test_one_word_for_all_topics() -> None:
    assert parse_starting_offsets("earliest").of(T) == "earliest"
    assert parse_starting_offsets(" Latest ", default="earliest").of(T) == "latest"
    assert parse_ending_offsets("latest").of(T) == "latest"


@pytest.mark.parametrize("name", ["t", "public/default/t", "persistent://public/default/t"])
@pytest.mark.parametrize("value", ["[7, 3]", '"7:3"', '"7:3:-1"', '"7:3:-1:4"'])
def test_a_start_includes_its_message_and_so_does_an_end(name: str, value: str) -> None:
    text = f'{{"{name}": {value}}}'
    assert parse_starting_offsets(text).of(T) == at(7, 3)
    assert parse_ending_offsets(text).of(T) == at(7, 4)


@given(st.integers(0, 2**63 - 2), st.integers(0, 2**63 - 2), st.integers(-1, 2**31 - 1))
def test_message_ids_as_the_column_shows_them(ledger: int, entry: int, batch: int) -> None:
    message = MessageId(LedgerId(ledger), EntryId(entry), 2, batch)
    offsets = parse_starting_offsets(f'{{"t": "{message}"}}', default="earliest")
    assert offsets.of(T.partition(2)) == at(ledger, entry)
    assert offsets.of(T.partition(1)) == "earliest"


def test_topics_that_are_not_named_have_the_default() -> None:
    offsets = parse_starting_offsets('{"t": "earliest"}')
    assert offsets.of(T) == "earliest"
    assert offsets.of(T.partition(3)) == "earliest"
    assert offsets.of(TopicName.parse("u")) == "latest"


def test_names_that_match_no_topic_are_refused() -> None:
    offsets = parse_starting_offsets('{"t": "earliest", "u": [1, 2], "v-partition-0": [1, 2], "w": "latest"}')
    u, v = TopicName.parse("u"), TopicName.parse("v")
    topics = [T.partition(0), u.partition(0), u.partition(1), v.partition(0)]
    assert offsets.unmatched(topics) == ("persistent://public/default/u", "persistent://public/default/w")
    assert offsets.of(u.partition(1)) == "latest"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("newest", "give earliest or latest, or a JSON object of topics"),
        ("", "a JSON object of topics"),
        ("{}", "a JSON object of topics"),
        ("[1, 2]", "a JSON object of topics"),
        ('"earliest"', "a JSON object of topics"),
        ('{"t": "7"}', "ledger:entry"),
        ('{"t": "7:3:x"}', "ledger:entry"),
        ('{"t": [7]}', "ledger:entry"),
        ('{"t": [7, 3, 1]}', "ledger:entry"),
        ('{"t": [true, 3]}', "ledger:entry"),
        ('{"t": [7.0, 3]}', "ledger:entry"),
        ('{"t": 7}', "ledger:entry"),
        ('{"t": null}', "ledger:entry"),
        ('{"t": [-1, 3]}', "too large or negative"),
        ('{"t": [9223372036854775807, 3]}', "too large or negative"),
        ('{"t": "7:3", "t": "7:4"}', "named twice"),
        ('{"t": "7:3", "public/default/t": "7:4"}', "named twice"),
        ('{"t": "7:3:0", "t-partition-0": "7:4"}', "named twice"),
        ('{"t-partition-1": "7:3:0"}', "another partition, 0"),
        ('{"a/b": "7:3"}', "a short name is"),
        ("[" * 100_000, "recursion"),
    ],
)
def test_other_values_are_refused_naming_option_and_value(text: str, what: str) -> None:
    with pytest.raises(InvalidArgumentError, match=what) as raised:
        parse_starting_offsets(text)
    assert str(raised.value).startswith(f"Option startingOffsets has the value {text!r}")


@pytest.mark.parametrize("text", ["earliest", '{"t": "earliest"}'])
def test_an_end_cannot_be_earliest(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="Option endingOffsets"):
        parse_ending_offsets(text)
