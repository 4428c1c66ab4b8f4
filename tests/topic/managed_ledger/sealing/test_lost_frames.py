"""Frames that no copy gives stop the sealer until they are given up; what is lost with them readers hear of."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pulsar_on_spark.cli.app import app
from pulsar_on_spark.ledger.journal.codec_scan import FrameScanner
from pulsar_on_spark.ledger.journal.files import read_file_header
from pulsar_on_spark.ledger.journal.frame_header import HEADER_BYTES
from pulsar_on_spark.ledger.journal.frames import FrameHead
from pulsar_on_spark.ledger.journal.journal_bytes import FileBytes
from pulsar_on_spark.metadata import keys
from pulsar_on_spark.metadata.records import LedgerRecord, SealRecord, SegmentRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.metadata.store import Change
from pulsar_on_spark.model.errors import InvalidArgumentError, JournalUndecidedError, MetadataError, StorageError
from pulsar_on_spark.model.ids import EARLIEST, EntryId, PathId, Position
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.data_path import tail as tail_module
from pulsar_on_spark.topic.data_path.tail import Tail
from pulsar_on_spark.topic.managed_ledger.chain import chain
from pulsar_on_spark.topic.managed_ledger.sealing.lost_frames import give_up_frames
from pulsar_on_spark.topic.managed_ledger.sealing.sealer import Sealer
from pulsar_on_spark.topic.managed_ledger.sealing.trim import Trimmer
from tests.kit import messages
from tests.kit.journal_logs import LogOnDisk, journal_files

from .test_sealer import entry

A, B = ("persistent://public/default/a", "persistent://public/default/b")


@pytest.fixture
def log(root: Root) -> LogOnDisk:
    """Frames 0 to 9; frame 6 begins a fragment."""
    made = LogOnDisk(root)
    made.open_ledgers(["a", "b"])
    for number in range(9):
        made.append({"a": [entry(number)] * 2, "b": [entry(-number)]} if number % 2 == 0 else {"a": [entry(number)]})
        if number == 4:
            made.roll()
    made.close()
    return made


def damage(log: LogOnDisk, frame: int, offset: int) -> None:
    """Turn a bit of a frame over in all copies."""
    for path in log.root.path.glob(f"storage/*/journal/{log.incarnation}/*/frames.*"):
        if (start := _start_of(path, frame)) is not None:
            data = bytearray(path.read_bytes())
            data[start + offset] ^= 1
            path.write_bytes(data)


def _start_of(path: Path, frame: int) -> int | None:
    with path.open("rb") as file:
        _, start = read_file_header(FileBytes(file.fileno()), path.name)
        scanner = FrameScanner(FileBytes(file.fileno()), start, path.name, checked_before=True)
        while isinstance(head := scanner.next_head(), FrameHead):
            if head.header.number == frame:
                return head.offset
    return None


def close_ledger(log: LogOnDisk, topic: str, entries: int) -> None:
    """Commit the close row that the ledger's owner commits once `entries` entries are acknowledged."""

    def decide(view: View) -> Change:
        (ledger,) = [each for each in view.all(LedgerRecord) if each.ledger_id == log.ledger(topic)]
        return Change(
            puts=[ledger.model_copy(update={"closed": True, "entries": entries})],
            keys={keys.incarnation_seal(log.incarnation): None},
        )

    log.root.store.commit(decide)


def seal(log: LogOnDisk) -> int:
    return Sealer(log.root, log.incarnation, is_live=False).seal(tail=True).entries


def lose(log: LogOnDisk, frame: int) -> None:
    """Lose the content of a frame, which an operator gives up, and seal the others."""
    damage(log, frame, HEADER_BYTES + 60)
    with pytest.raises(StorageError):
        seal(log)
    give_up_frames(log.root, log.incarnation, commit=True)
    seal(log)


def ranges(root: Root, topic: str) -> tuple[list[tuple[int, int]], int]:
    """Return what a reader of a whole topic gets, as ranges of entries, and the number of reported losses."""
    view = root.store.view()
    (part,) = messages.target(root, topic).parts
    end = chain.read_limit(view, part.topic_id)
    plan = chain.plan_range(view, part.name, part.topic_id, -1, EARLIEST, end)
    return [(slice_.first, slice_.end) for slice_ in plan.slices], len(plan.losses)


def test_a_leading_gap_is_reported_to_a_reader_that_may_continue(
    log: LogOnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is given up yet, and of both ledgers nothing is sealed."""
    monkeypatch.setattr(tail_module, "MAX_PASSES", 1)
    damage(log, 0, HEADER_BYTES // 2)
    part = messages.target(log.root, "a").parts[0]
    with closing(Tail(log.root, fail_on_data_loss=False)) as tail:
        seen = tail.read_view([part])
    plan = chain.plan_range(seen, part.name, part.topic_id, -1, EARLIEST, chain.read_limit(seen, part.topic_id))
    assert next(each.first for each in plan.slices) == 8
    assert [loss.reason for loss in plan.losses] == [f"entries 0:0 to {log.ledger('a')}:8 are gone"]


def test_a_frame_with_bad_content_is_lost_alone(log: LogOnDisk) -> None:
    """The frame's directory says exactly what is lost."""
    damage(log, 2, 400)
    with pytest.raises(JournalUndecidedError, match=r"Frame 2 .* give the frame up with `pulsarpy recover`"):
        seal(log)
    (lost,) = give_up_frames(log.root, log.incarnation, commit=False)
    assert (lost.begin, lost.end, lost.entries, lost.topics) == (2, 3, 3, (A, B))
    with pytest.raises(JournalUndecidedError):
        seal(log)

    (lost,) = give_up_frames(log.root, log.incarnation, commit=True)
    assert seal(log) == sum(map(len, log.entries.values())) - 3
    assert give_up_frames(log.root, log.incarnation, commit=True) == [], "nothing is lost beyond that"
    Trimmer(log.root, log.incarnation, grace_s=0).trim()
    assert journal_files(log.root, log.incarnation) == []
    # Frames 0, 1, 2 have 2, 1, 2 entries of a, and 1, 0, 1 of b.
    assert ranges(log.root, "a") == ([(0, 3), (5, 14)], 1)
    assert ranges(log.root, "b") == ([(0, 1), (2, 5)], 1)


def test_a_frame_with_a_bad_header_loses_the_rest_of_its_fragment(log: LogOnDisk) -> None:
    """The frames behind it in the file cannot be found."""
    damage(log, 3, HEADER_BYTES // 2)
    (lost,) = give_up_frames(log.root, log.incarnation, commit=True)
    assert (lost.begin, lost.end, lost.entries, lost.topics) == (3, 6, None, (A, B))
    seal(log)
    assert Trimmer(log.root, log.incarnation, grace_s=0).trim().deleted_files == 6
    assert ranges(log.root, "a") == ([(0, 5), (8, 14)], 1)
    assert ranges(log.root, "b") == ([(0, 2), (3, 5)], 1)


def test_an_unexplained_gap_is_a_defect_and_not_a_loss(root: Root) -> None:
    """Frame 1 had entry 1; that entry 2 is missing, too, is another matter."""
    log = LogOnDisk(root)
    log.open_ledgers(["a"])
    log.append({"a": [entry(0)]})
    log.append({"a": [entry(1)]})
    log.entries[log.ledger("a")].append(b"never written")
    log.append({"a": [entry(3)]})
    log.close()
    damage(log, 1, 400)
    give_up_frames(root, log.incarnation, commit=True)
    with pytest.raises(MetadataError, match="restore the metadata"):
        seal(log)


def test_a_ledger_that_ends_before_its_close_row_is_not_trimmed(root: Root) -> None:
    log = LogOnDisk(root)
    log.open_ledgers(["a"])
    log.append({"a": [entry(0)] * 2})
    close_ledger(log, "a", 3)
    log.close()
    assert seal(log) == 2
    with pytest.raises(MetadataError, match=r"should have 3 entries .* 2 are sealed"):
        Trimmer(root, log.incarnation, grace_s=0).trim()
    assert len(journal_files(root, log.incarnation)) == 3


def test_a_ledger_cut_off_with_given_up_paths_ends_there(root: Root) -> None:
    log = LogOnDisk(root)
    log.open_ledgers(["a"])
    log.append({"a": [entry(0)] * 2})
    close_ledger(log, "a", 3)
    log.close(given_up=(PathId(0),))
    messages.write(root, "a", [b"later"])
    assert seal(log) == 2
    assert Trimmer(root, log.incarnation, grace_s=0).trim().deleted_files == 3
    (ledger,) = [each for each in root.store.view().all(LedgerRecord) if each.incarnation]
    assert (ledger.entries, [(each.first, each.end) for each in ledger.lost]) == (2, [(2, 3)])
    assert ranges(root, "a") == ([(0, 2), (0, 1)], 1), "readers go on behind it"


def test_an_open_ledger_of_a_journal_that_lost_its_end_with_paths_may_be_longer(root: Root) -> None:
    """The number of its acknowledged entries is unknowable: readers get a loss before and after sealing."""
    log = LogOnDisk(root)
    log.open_ledgers(["a"])
    log.append({"a": [entry(0)] * 2})
    log.close(given_up=(PathId(0),))
    messages.write(root, "a", [b"later"])
    part = messages.target(root, "a").parts[0]
    with closing(Tail(root)) as tail:
        seen = tail.read_view([part])
    plan = chain.plan_range(seen, part.name, part.topic_id, -1, EARLIEST, chain.read_limit(seen, part.topic_id))
    assert ([(each.first, each.end) for each in plan.slices], len(plan.losses)) == ([(0, 2), (0, 1)], 1)
    seal(log)
    assert Trimmer(root, log.incarnation, grace_s=0).trim().is_cleared
    assert ranges(root, "a") == ([(0, 2), (0, 1)], 1)


def test_the_end_of_ledgers(log: LogOnDisk) -> None:
    damage(log, 9, 400)
    give_up_frames(log.root, log.incarnation, commit=True)
    seal(log)
    assert Trimmer(log.root, log.incarnation, grace_s=0).trim().deleted_files == 6
    view = log.root.store.view()
    lost = {ledger.topic_id: ledger.lost for ledger in view.all(LedgerRecord)}
    assert sorted((each.first, each.end) for found in lost.values() for each in found) == [(4, 5), (12, 14)]
    assert all(ledger.closed for ledger in view.all(LedgerRecord))
    assert ranges(log.root, "a") == ([(0, 12)], 0), "who has read to the end has missed nothing yet"
    messages.write(log.root, "a", [b"later"])
    assert ranges(log.root, "a")[1] == 1, "a reader that continues with the next ledger has one"
    (part,) = messages.target(log.root, "a").parts
    view = log.root.store.view()
    start = Position(log.ledger("a"), EntryId(12))
    plan = chain.plan_range(view, part.name, part.topic_id, -1, start, chain.read_limit(view, part.topic_id))
    assert (len(plan.slices), len(plan.losses)) == (1, 1)


def test_a_ledger_that_is_lost_altogether(root: Root) -> None:
    log = LogOnDisk(root)
    log.open_ledgers(["a"])
    log.append({"a": [entry(0)]})
    log.close()
    messages.write(root, "a", [b"later"])
    damage(log, 0, 400)
    give_up_frames(root, log.incarnation, commit=True)
    assert seal(log) == 0
    assert Trimmer(root, log.incarnation, grace_s=0).trim().deleted_files == 3
    assert root.store.view().all(SegmentRecord)[0].entries == 1
    assert ranges(root, "a")[1] == 1


def test_nothing_is_given_up_of_a_journal_that_is_open(root: Root) -> None:
    log = LogOnDisk(root)
    log.open_ledgers(["a"])
    log.append({"a": [entry(0)]})
    with pytest.raises(InvalidArgumentError, match="is OPEN: stop its broker"):
        give_up_frames(root, log.incarnation, commit=True)


def test_on_the_command_line(log: LogOnDisk) -> None:
    damage(log, 2, 400)
    arguments = ["recover", str(log.root.path), "--incarnation", log.incarnation, "--give-up-frames"]
    said = CliRunner().invoke(app, [*arguments, "--json"])
    assert said.exit_code == 1
    assert '"entries": 3' in said.stdout
    assert log.root.store.view().all(SealRecord) == []
    done = CliRunner().invoke(app, [*arguments, "--yes"])
    assert done.exit_code == 0, done.output
    assert [each.begin for each in log.root.store.view().all(SealRecord)[0].given_up] == [2]
    assert CliRunner().invoke(app, ["recover", str(log.root.path), "--give-up-frames"]).exit_code != 0
    status = CliRunner().invoke(app, ["status", str(log.root.path)])
    assert f"Frames 2 to 2 of incarnation {log.incarnation} were given up." in status.stdout.replace("\n", " ")
