"""The stream offset: round trip, canonical text, refusals, and how it moves."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_on_spark.model.errors import FormatVersionError, InvalidArgumentError
from pulsar_on_spark.model.ids import EARLIEST, EntryId, LedgerId, Position, TopicId
from pulsar_on_spark.topic.managed_ledger.subscription.offsets import (
    ALL,
    FROM_EARLIEST,
    SlotRange,
    StreamOffset,
    TopicOffset,
    slots_from_text,
    slots_text,
)

T = "persistent://public/default/t"
U = "persistent://public/default/u"


def at(ledger: int, entry: int) -> Position:
    return Position(LedgerId(ledger), EntryId(entry))


def whole(start: Position, end: Position, epoch: int = 1) -> TopicOffset:
    return TopicOffset(TopicId("a" * 32), (SlotRange(ALL, epoch, start, end),))


numbers = st.integers(0, 2**63 - 1)
few = st.integers(0, 3)
positions = st.builds(at, numbers, numbers) | st.builds(at, few, few)
epochs = numbers | few
cursor_versions = st.none() | st.tuples(few, few)


@st.composite
def topic_offsets(draw: st.DrawFn) -> TopicOffset:
    topic_id = TopicId(draw(st.text(alphabet="0123456789abcdef", min_size=32, max_size=32)))
    slots = draw(st.just(ALL) | st.lists(st.integers(0, 63), unique=True, max_size=64))
    ranges = []
    for part in [ALL] if slots == ALL else [(slot,) for slot in slots]:
        start, end = sorted(draw(st.tuples(positions, positions)))
        ranges.append(SlotRange(part, draw(epochs), start, end, draw(cursor_versions)))
    return TopicOffset(topic_id, tuple(ranges))


offsets = st.builds(
    StreamOffset, st.text(), st.dictionaries(st.text(), topic_offsets(), max_size=3), st.none() | st.text()
)


@given(offsets)
def test_a_written_offset_is_read_back(offset: StreamOffset) -> None:
    # Spark writes with json.dumps as it stands, so the order of the keys must be right already.
    text = json.dumps(offset.to_json())
    assert text == json.dumps(offset.to_json(), sort_keys=True)
    back = StreamOffset.from_json(json.loads(text))
    assert back == offset
    assert back.text() == offset.text()


@given(topic_offsets(), st.randoms())
def test_equal_offsets_have_equal_text_in_whatever_pieces_they_were_built(topic: TopicOffset, random: object) -> None:
    pieces = [
        SlotRange(ALL if part == ALL else (part,), range_.epoch, range_.start, range_.end, range_.holes)
        for range_ in topic.ranges
        for part in (range_.numbers or [ALL])
    ]
    random.shuffle(pieces)
    other = TopicOffset(topic.topic_id, tuple(pieces))
    assert StreamOffset("c", {T: other, U: topic}).text() == StreamOffset("c", {U: topic, T: topic}).text()


def test_the_text_is_as_the_layout_says() -> None:
    slotted = [SlotRange((slot,), 3, at(1, 0), at(2, 9)) for slot in [*range(32), 40]]
    other = SlotRange((33,), 4, at(1, 5), at(2, 9), holes=(4, 17))
    offset = StreamOffset(
        "c-7ab6", {U: TopicOffset(TopicId("u1"), (other, *slotted)), T: whole(at(1, 2), at(1, 7))}, "s"
    )
    assert json.loads(offset.text()) == {
        "v": 2,
        "consumer": "c-7ab6",
        "subscription": "s",
        "topics": {
            T: {"id": "a" * 32, "epoch": 1, "from": [1, 2], "to": [1, 7]},
            U: {
                "id": "u1",
                "groups": [
                    {"slots": "0-31,40", "epoch": 3, "from": [1, 0], "to": [2, 9]},
                    {"slots": "33", "epoch": 4, "from": [1, 5], "to": [2, 9], "holes": [4, 17]},
                ],
            },
        },
    }


@given(st.lists(st.integers(0, 63), unique=True, min_size=1).map(sorted))
def test_slots_as_runs(slots: list[int]) -> None:
    assert slots_from_text(slots_text(slots)) == tuple(slots)


@pytest.mark.parametrize("text", ["", "3-1", "1,1", "0,1", "5-5", "a", "1-2-3", " 1", "01", None, 7, "0-31,31"])
def test_slots_in_another_form_are_refused(text: object) -> None:
    with pytest.raises(InvalidArgumentError, match="slots"):
        slots_from_text(text)


def test_a_newer_version_is_refused_before_anything_else_is_read() -> None:
    with pytest.raises(FormatVersionError, match="version 3, and this pulsar_on_spark reads up to 2: upgrade"):
        StreamOffset.from_json({"v": 3, "future": True})


@given(offsets)
def test_an_offset_of_version_1_is_read_without_its_subscription(offset: StreamOffset) -> None:
    fields = {**offset.to_json(), "v": 1}
    del fields["subscription"]
    assert StreamOffset.from_json(fields) == StreamOffset(offset.consumer, offset.topics)


@pytest.mark.parametrize(
    ("offset", "subscribed"),
    [
        (StreamOffset("c", {}), False),
        (StreamOffset("c", {T: whole(at(1, 2), at(1, 7), epoch=0)}), False),
        (StreamOffset("c", {T: whole(at(1, 2), at(1, 7), epoch=0)}, "s"), True),
        (StreamOffset("c", {T: whole(at(1, 2), at(1, 7), epoch=3)}), True),
        (StreamOffset("c", {T: TopicOffset(TopicId("a"))}), True),
    ],
)
def test_whether_an_offset_was_read_under_a_subscription(offset: StreamOffset, subscribed: bool) -> None:
    assert offset.is_subscribed is subscribed


def test_the_offset_before_a_batch_excludes_it() -> None:
    offset = StreamOffset("c", {T: whole(at(1, 2), at(1, 7))}, "s")
    assert offset.before_batch() == StreamOffset("c", {T: whole(at(1, 2), at(1, 2))}, "s")


TOPIC = {"id": "a", "epoch": 1, "from": [1, 2], "to": [1, 7]}
GROUP = {"slots": "3", "epoch": 1, "from": [1, 2], "to": [1, 7]}


@pytest.mark.parametrize(
    ("topic", "what"),
    [
        (7, "not an object"),
        ({}, "the id of"),
        ({**TOPIC, "from": [1]}, "not a pair"),
        ({**TOPIC, "from": [1, -1]}, "not a whole number"),
        ({**TOPIC, "from": [1, 2.0]}, "not a whole number"),
        ({**TOPIC, "from": [True, 2]}, "not a whole number"),
        ({**TOPIC, "to": [1, 2**63]}, "not a whole number"),
        ({**TOPIC, "to": [1, 1]}, "runs backwards"),
        ({**TOPIC, "more": 1}, "unknown fields"),
        ({"id": "a", "epoch": 1, "from": [1, 2]}, "to of topic"),
        ({**TOPIC, "groups": [GROUP]}, "has groups"),
        ({"id": "a", "groups": {}}, "has groups"),
        ({"id": "a", "groups": [TOPIC]}, "unknown fields"),
        ({"id": "a", "groups": [GROUP, {**GROUP, "epoch": 2}]}, "two ranges"),
        ({"id": "a", "groups": [{**GROUP, "slots": "64"}]}, "ascending numbers from 0 to 63"),
        ({**TOPIC, "holes": [1]}, "not a pair"),
    ],
)
def test_malformed_topics_are_refused(topic: object, what: str) -> None:
    with pytest.raises(InvalidArgumentError, match=what) as raised:
        StreamOffset.from_json({"v": 1, "consumer": "c", "topics": {T: topic}})
    assert str(raised.value).startswith("The checkpoint's offset is malformed")
    assert str(raised.value).count("malformed") == 1


@pytest.mark.parametrize(
    "text",
    [
        "null",
        "[]",
        "{}",
        '{"v": 1}',
        '{"v": 0}',
        '{"v": "1"}',
        '{"v": 1, "consumer": "c"}',
        '{"v": 1, "consumer": 1, "topics": {}}',
        '{"v": 1, "consumer": "c", "topics": []}',
        '{"v": 1, "consumer": "c", "topics": {}, "x": 1}',
        '{"v": 1, "consumer": "c", "topics": {}, "subscription": "s"}',
        '{"v": 2, "consumer": "c", "topics": {}, "subscription": 1}',
    ],
)
def test_malformed_offsets_are_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="The checkpoint's offset is malformed"):
        StreamOffset.from_json(json.loads(text))


def test_the_next_offset_has_the_new_ranges() -> None:
    offset = StreamOffset("c", {T: whole(at(1, 0), at(1, 5)), U: whole(at(3, 0), at(3, 1))})
    topics = {T: whole(at(1, 5), at(2, 4)), U: whole(at(3, 1), at(3, 1))}
    assert offset.next(topics) == StreamOffset("c", topics)


def test_the_next_offset_is_the_start_verbatim_without_new_messages() -> None:
    offset = StreamOffset("c", {T: whole(at(1, 0), at(1, 5))})
    assert offset.next({T: whole(at(1, 5), at(1, 5))}) is offset


def test_topics_that_appear_start_at_earliest_and_those_that_vanish_are_named() -> None:
    offset = StreamOffset("c", {T: whole(at(1, 0), at(1, 5))})
    same, changes = offset.reconcile_topics({T: TopicId("a" * 32)})
    assert same is offset
    assert changes.appeared == changes.vanished == ()

    changed, changes = offset.reconcile_topics({U: TopicId("b" * 32)})
    assert (changes.appeared, changes.vanished) == ((U,), (T,))
    assert changed.topics == {U: TopicOffset(TopicId("b" * 32), FROM_EARLIEST)}


def test_a_recreated_topic_is_another_topic() -> None:
    offset = StreamOffset("c", {T: whole(at(1, 0), at(1, 5))})
    changed, changes = offset.reconcile_topics({T: TopicId("b" * 32)})
    assert changes.appeared == changes.vanished == (T,)
    assert changed.topics == {T: TopicOffset(TopicId("b" * 32), FROM_EARLIEST)}


def test_the_range_of_a_slot() -> None:
    low, high = SlotRange((0, 1), 1, EARLIEST, at(1, 0)), SlotRange((5,), 2, EARLIEST, at(2, 0))
    topic = TopicOffset(TopicId("a"), (high, low))
    assert (topic.at(1), topic.at(5), topic.at(2)) == (low, high, None)
    assert whole(EARLIEST, EARLIEST).at(0) is not None
    with pytest.raises(InvalidArgumentError, match="beside other ranges"):
        TopicOffset(TopicId("a"), (low, SlotRange(ALL, 1, EARLIEST, EARLIEST)))
