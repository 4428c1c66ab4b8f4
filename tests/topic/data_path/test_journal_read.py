"""Entries are read from any good copy of their frame, at each read."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from pulsar_on_spark.ledger.journal.checked_frames import CheckedFrames
from pulsar_on_spark.ledger.journal.frame_reader import JournalPlace
from pulsar_on_spark.model.errors import CorruptJournalError
from pulsar_on_spark.model.ids import EARLIEST
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.data_path.journal_read import stored_entries
from pulsar_on_spark.topic.data_path.tail import Tail
from pulsar_on_spark.topic.managed_ledger.chain import chain
from tests.kit import messages
from tests.kit.journal_logs import LogOnDisk

ENTRY, OTHER = b"what was acknowledged" * 9, b"another topic's" * 9


@pytest.fixture
def log(root: Root) -> LogOnDisk:
    made = LogOnDisk(root)
    made.open_ledgers(["a", "b"])
    made.append({"a": [ENTRY], "b": [OTHER]})
    made.close()
    return made


def place_of(log: LogOnDisk, topic: str) -> JournalPlace:
    (part,) = messages.target(log.root, topic).parts
    with closing(Tail(log.root)) as tail:
        view = tail.read_view([part])
    limit = chain.read_limit(view, part.topic_id)
    (slice_,) = chain.plan_range(view, part.name, part.topic_id, -1, EARLIEST, limit).slices
    assert isinstance(slice_.file, JournalPlace)
    return slice_.file


def stored(log: LogOnDisk, topic: str, place: JournalPlace) -> list[bytes]:
    return [each.data for each in stored_entries(place, log.ledger(topic), 0, 1, log.root.current_storage_paths)]


def rot(file: Path, payload: bytes) -> None:
    """Flip a bit of a payload, in place."""
    content = file.read_bytes()
    with file.open("r+b") as opened:
        opened.seek(content.index(payload) + 5)
        opened.write(bytes([content[content.index(payload) + 5] ^ 1]))


@pytest.mark.parametrize("first_read", ["a", "b"])
def test_bytes_damaged_after_their_frame_was_read_are_not_returned(log: LogOnDisk, first_read: str) -> None:
    place = place_of(log, "a")
    assert stored(log, first_read, place) == [ENTRY if first_read == "a" else OTHER]
    files = sorted(log.root.path.glob(f"storage/*/journal/{log.incarnation}/*/frames.open"))
    in_use = place.scanned[0].path
    rot(files[in_use], ENTRY)
    assert stored(log, "a", place) == [ENTRY], "another copy has it"
    for number in {0, 1, 2} - {in_use}:
        rot(files[number], ENTRY)
    with pytest.raises(CorruptJournalError, match="no good copy left"):
        stored(log, "a", place)
    assert stored(log, "b", place) == [OTHER]


def test_the_kept_checksums_are_bounded() -> None:
    checked = CheckedFrames(max_crcs=10)
    one, two, three = (("i", str(number), (0, number)) for number in range(3))
    crcs = np.zeros(4, np.uint32)
    for file in (one, two):
        checked.add(file, 7, crcs)
        checked.add(file, 7, crcs)
    assert checked.get(one, 7) is crcs
    checked.add(three, 7, crcs)
    assert [checked.get(file, 7) is not None for file in (one, two, three)] == [True, False, True]
    checked.add(three, 8, np.zeros(11, np.uint32))
    assert [checked.get(file, 7) for file in (one, two, three)] == [None] * 3
