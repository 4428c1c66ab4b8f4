"""The rules of the chain, request by request. The simulator looks for what these scenes leave out."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial

import pytest
from crc32c import crc32c

from pulsar_on_spark.metadata.log import chain
from pulsar_on_spark.metadata.log.chain import (
    Answer,
    ConflictError,
    Create,
    DamagedEntryError,
    Fetch,
    ForeignEntryError,
    ListBehind,
    OvertakenError,
    Request,
    UnknownOutcomeError,
    append,
    follow,
    settle,
)
from pulsar_on_spark.metadata.log.entry import Content, Tip, encode_entry
from pulsar_on_spark.model.errors import ObjectsUnreachableError

TIP = Tip(5, "five", is_chained=True)
MINE = Content(keys={"key": 1})
LOST = ObjectsUnreachableError("no reply")


def entry(token: str, previous: str, content: Content = Content()) -> bytes:  # noqa: B008 - it is frozen
    return encode_entry(content, token, previous, None)


def play(steps: Generator[Request, Answer, object], *scene: tuple[Request, Answer | Exception]) -> object:
    """Answer the requests of a scene, and return the end."""
    try:
        request = next(steps)
        for expected, answer in scene:
            is_same = type(request) is type(expected) and request.version == expected.version
            assert is_same, f"{request} instead of {expected}"
            request = steps.throw(answer) if isinstance(answer, Exception) else steps.send(answer)
    except StopIteration as end:
        return end.value
    raise AssertionError(f"{request} is not expected")


def appending(content: Content = MINE) -> Generator[Request, Answer, list[chain.Entry]]:
    return append(TIP, partial(encode_entry, content, "mine", boot=None), content, "mine")


def put(version: int) -> Create:
    return Create(version, b"")


def test_an_entry_counts_if_nothing_is_behind_it() -> None:
    news = play(appending(), (put(6), None), (ListBehind(6), False))
    assert [each.token for each in news] == ["mine"]  # type: ignore[attr-defined]


def test_an_entry_goes_behind_others_that_move_other_keys() -> None:
    other = entry("other", "five", Content(keys={"else": 9}))
    news = play(appending(), (put(6), other), (put(7), None), (ListBehind(7), False))
    assert [(each.version, each.token) for each in news] == [(6, "other"), (7, "mine")]  # type: ignore[attr-defined]


def test_the_answer_to_a_repeated_request_is_recognised() -> None:
    news = play(appending(), (put(6), entry("mine", "five", MINE)), (ListBehind(6), False))
    assert [each.token for each in news] == ["mine"]  # type: ignore[attr-defined]


def test_an_entry_counts_if_all_entries_behind_it_are_linked_to_it() -> None:
    scene = (
        (put(6), None),
        (ListBehind(6), True),
        (Fetch(7), entry("seven", "mine")),
        (Fetch(8), None),
        (ListBehind(7), True),
        (Fetch(8), entry("eight", "seven")),
        (Fetch(9), None),
        (ListBehind(8), False),
    )
    assert [each.token for each in play(appending(), *scene)] == ["mine", "seven", "eight"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "scene",
    [
        pytest.param([(put(6), LOST)], id="no answer to the entry itself"),
        pytest.param([(put(6), None), (ListBehind(6), LOST)], id="no answer to the listing"),
        pytest.param([(put(6), None), (ListBehind(6), True), (Fetch(7), LOST)], id="no answer to a later entry"),
        pytest.param([(put(6), None), (ListBehind(6), True), (Fetch(7), None)], id="a number that was cleaned up"),
        pytest.param(
            [(put(6), None), (ListBehind(6), True), (Fetch(7), entry("seven", "another"))],
            id="just before the oldest entry",
        ),
        pytest.param(
            [
                (put(6), None),
                (ListBehind(6), True),
                (Fetch(7), entry("sleeper", "mine")),
                (Fetch(8), None),
                (ListBehind(7), True),
                (Fetch(8), None),
            ],
            id="another sleeper built on it",
        ),
    ],
)
def test_the_outcome_is_unknown(scene: list[tuple[Request, Answer | Exception]]) -> None:
    with pytest.raises(UnknownOutcomeError):
        play(appending(), *scene)


@pytest.mark.parametrize(
    ("present", "error"),
    [
        pytest.param(entry("other", "five", MINE), ConflictError, id="the same key"),
        pytest.param(entry("fold", "five", Content(removed=["file"])), ConflictError, id="a fold"),
        pytest.param(entry("other", "another five"), OvertakenError, id="another history"),
        pytest.param(b'{"commitInfo":{"operation":"WRITE"}}', ForeignEntryError, id="another program"),
        pytest.param(b"", DamagedEntryError, id="an empty entry"),
    ],
)
def test_nothing_is_committed(present: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        play(appending(), (put(6), present))


def test_a_commit_goes_on_behind_a_limited_number_of_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain, "MAX_OVERTAKEN", 1)
    with pytest.raises(ConflictError):
        play(appending(), (put(6), entry("six", "five")), (put(7), entry("seven", "six")))


def test_a_reader_follows_the_chain_to_its_end() -> None:
    assert play(follow(TIP), (ListBehind(5), False)) == []
    scene = ((ListBehind(5), True), (Fetch(6), entry("six", "five")), (Fetch(7), None), (ListBehind(6), False))
    assert [each.token for each in play(follow(TIP), *scene)] == ["six"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "scene",
    [
        pytest.param([(ListBehind(5), True), (Fetch(6), None)], id="cleaned up"),
        pytest.param(
            [
                (ListBehind(5), True),
                (Fetch(6), entry("sleeper", "five")),
                (Fetch(7), None),
                (ListBehind(6), True),
                (Fetch(7), None),
            ],
            id="cleaned up, and a sleeper's entry behind it",
        ),
        pytest.param([(ListBehind(5), True), (Fetch(6), entry("six", "another five"))], id="another history"),
    ],
)
def test_a_reader_whose_log_was_cleaned_up_reads_it_again(scene: list[tuple[Request, Answer | Exception]]) -> None:
    """Even if its last entry is there: a late copy of its request may have brought it back."""
    with pytest.raises(OvertakenError):
        play(follow(TIP), *scene)


FOREIGN = b'{"commitInfo":{"operation":"OPTIMIZE"}}\n{"remove":{"path":"a"}}'
CHECKSUM = f"{crc32c(FOREIGN):08x}"


def test_another_programs_entry_is_a_link_of_a_shared_log() -> None:
    scene = ((ListBehind(5), True), (Fetch(6), FOREIGN), (Fetch(7), entry("seven", CHECKSUM)), (Fetch(8), None))
    news = play(follow(TIP, is_shared=True), *scene, (ListBehind(7), False))
    assert [each.token for each in news] == [CHECKSUM, "seven"]  # type: ignore[attr-defined]
    with pytest.raises(OvertakenError):
        play(follow(TIP, is_shared=True), *scene[:2], (Fetch(7), entry("seven", "another program's")))


def test_a_commit_behind_another_programs_entry_is_decided_again() -> None:
    shared = append(TIP, partial(encode_entry, MINE, "mine", boot=None), MINE, "mine", is_shared=True)
    with pytest.raises(ConflictError):
        play(shared, (put(6), b'{"commitInfo":{"operation":"WRITE"}}'))


def test_a_commit_counts_if_another_programs_entry_is_behind_it() -> None:
    shared = append(TIP, partial(encode_entry, MINE, "mine", boot=None), MINE, "mine", is_shared=True)
    scene = ((put(6), None), (ListBehind(6), True), (Fetch(7), FOREIGN), (Fetch(8), None), (ListBehind(7), False))
    assert len(play(shared, *scene)) == 2  # type: ignore[arg-type]


def test_a_commit_behind_a_changed_schema_is_decided_again() -> None:
    with pytest.raises(ConflictError):
        play(appending(), (put(6), entry("other", "five", Content(head=[{"metaData": {"schemaString": ""}}]))))


def settling() -> Generator[Request, Answer, bool]:
    return settle(TIP, partial(encode_entry, Content(), "taken", boot=None), 6, "mine")


def test_a_number_that_was_taken_lets_no_late_request_in() -> None:
    assert play(settling(), (put(6), None), (ListBehind(6), False)) is False
    assert play(settling(), (put(6), entry("other", "five")), (ListBehind(6), False)) is False
    assert play(settling(), (put(6), entry("mine", "five")), (ListBehind(6), False)) is True


@pytest.mark.parametrize("scene", [[(put(6), LOST)], [(put(6), None), (ListBehind(6), LOST)]])
def test_a_number_that_may_not_be_taken_settles_nothing(scene: list[tuple[Request, Answer | Exception]]) -> None:
    with pytest.raises(UnknownOutcomeError):
        play(settling(), *scene)


def test_a_number_far_from_the_end_is_not_taken() -> None:
    steps: Callable[[], Generator[Request, Answer, bool]] = lambda: settle(  # noqa: E731
        TIP, partial(encode_entry, Content(), "taken", boot=None), 9, "mine"
    )
    with pytest.raises(OvertakenError):
        play(steps())
