"""The bytes of a journal's objects: what is written, and what a reader refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from pulsar_on_spark.ledger.journal.frame_header import ChainPoint
from pulsar_on_spark.ledger.journal.object_format import (
    ObjectHead,
    ObjectKind,
    file_prefix,
    head_bytes,
    object_name,
    parse_head,
    parse_object,
)
from pulsar_on_spark.model.errors import CorruptJournalError, FormatVersionError, InvalidArgumentError
from pulsar_on_spark.model.ids import IncarnationId, JournalFileId

INCARNATION, FILE = IncarnationId("0123456789abcdef"), JournalFileId("r-7")
TOKEN = "00112233445566778899aabbccddeeff"
DATA = ObjectHead(ObjectKind.DATA, INCARNATION, FILE, 3, TOKEN, ChainPoint(17, 0xDEADBEEF), 15, 2)
GOLDEN = Path(__file__).parents[2] / "golden" / "journal_object.hex"


@pytest.mark.parametrize(
    ("head", "body"),
    [
        (ObjectHead(ObjectKind.BIRTH, INCARNATION, FILE, 0, TOKEN), b"identity"),
        (DATA, b"frames" * 100),
        (ObjectHead(ObjectKind.FENCE, INCARNATION, FILE, 4, TOKEN), b""),
    ],
    ids=lambda value: getattr(value, "kind", None),
)
def test_an_object_is_read_as_it_was_written(head: ObjectHead, body: bytes) -> None:
    content = head.encode(body)

    assert parse_object(content, "o") == (head, body)
    assert len(content) == head_bytes(INCARNATION, FILE) + len(body)
    assert parse_head(content[: head_bytes(INCARNATION, FILE)], "o")[0] == head


def test_the_bytes_never_change() -> None:
    assert DATA.encode(b"body").hex() == GOLDEN.read_text().strip()


def test_keys_sort_as_numbers_do() -> None:
    assert file_prefix(INCARNATION, FILE) == "journal/0123456789abcdef/r-7"
    assert [object_name(number) for number in (0, 1, 2_000)] == ["0000000000", "0000000001", "0000002000"]


@pytest.mark.parametrize("position", range(0, len(DATA.encode(b"body")), 3))
def test_any_changed_byte_is_found(position: int) -> None:
    content = bytearray(DATA.encode(b"body"))
    content[position] ^= 1

    with pytest.raises((CorruptJournalError, FormatVersionError)):
        parse_object(bytes(content), "Journal object o")


@pytest.mark.parametrize("size_bytes", [0, 7, 60, len(DATA.encode()), len(DATA.encode(b"body")) - 1])
def test_a_short_object_is_refused(size_bytes: int) -> None:
    with pytest.raises(CorruptJournalError, match="Journal object o"):
        parse_object(DATA.encode(b"body")[:size_bytes], "Journal object o")


def test_an_object_of_a_newer_version_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pulsar_on_spark.ledger.journal.object_format.OBJECT_FORMAT", 2)
    content = DATA.encode(b"body")
    monkeypatch.undo()

    with pytest.raises(FormatVersionError, match=r"Journal object o has journal object format 2, .* upgrade it"):
        parse_object(content, "Journal object o")


def test_an_id_that_is_not_fit_for_a_key_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="not fit"):
        file_prefix(INCARNATION, JournalFileId("a/b"))
