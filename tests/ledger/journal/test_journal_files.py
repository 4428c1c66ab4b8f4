import errno
import os
from bisect import bisect_right
from itertools import accumulate
from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from pulsar_on_spark.ledger.journal.codec_encode import encode_cursor, encode_entries, encode_lac
from pulsar_on_spark.ledger.journal.codec_scan import (
    HEADS_WINDOW_BYTES,
    WINDOW_BYTES,
    BadFrame,
    CleanEnd,
    FrameScanner,
    TornEnd,
    part_crcs,
    read_run,
)
from pulsar_on_spark.ledger.journal.files import (
    JournalFileHeader,
    create_journal_file,
    fenced_name,
    file_directory,
    incarnation_directory,
    log_start,
    open_journal_file,
    open_name,
    read_file_header,
)
from pulsar_on_spark.ledger.journal.frame_header import ChainPoint, ScanPosition
from pulsar_on_spark.ledger.journal.frames import Frame, FrameHead, payload_views
from pulsar_on_spark.ledger.journal.journal_bytes import FileBytes
from pulsar_on_spark.ledger.journal.log import FrameKind
from pulsar_on_spark.model.errors import (
    CorruptJournalError,
    FormatVersionError,
    InvalidArgumentError,
    StoragePathError,
)
from pulsar_on_spark.storage.files import OS_FILES
from pulsar_on_spark.testing.failing_files import FailingFiles
from pulsar_on_spark.testing.recording_files import Crash, RecordingFiles
from tests.kit.open_files import open_files_under
from tests.ledger.journal.journal_files import (
    HEADER,
    INCARNATION,
    NAME,
    CountingFiles,
    content,
    group,
    scan,
    small_file,
    small_frames,
    store,
)

GOLDEN = Path(__file__).parents[2] / "golden" / "journal_file.hex"


def append(path: Path, data: bytes) -> None:
    with open(path, "ab") as file:
        file.write(data)


def bad_disk(monkeypatch, bad_at):
    """Make the disk fail as Linux shows it: a read ends before the bad byte, and one that begins there fails."""
    preadv, failures = os.preadv, []

    def failing(fd, buffers, offset):
        if offset == bad_at:
            failures.append(offset)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        (target,) = buffers
        return preadv(fd, [target[: bad_at - offset] if offset < bad_at else target], offset)

    monkeypatch.setattr(os, "preadv", failing)
    return failures


def scanner_of(path, files=OS_FILES, **options):
    fd = os.open(path, os.O_RDONLY)
    return FrameScanner(FileBytes(fd, files), read_file_header(FileBytes(fd), NAME)[1], NAME, **options)


def frames_of(count, at=HEADER.first, size=100):
    made = []
    for _ in range(count):
        number = at.next_number
        made.append(encode_entries(group((1, number, bytes([number % 251]) * size)), at, number - 1))
        at = made[-1].header.after
    return made


def resealed(data: bytes, position: int, value: bytes) -> bytes:
    """A file header with other bytes at a position, and a good checksum."""
    header = bytearray(data)
    header[position : position + len(value)] = value
    header[28:32] = crc32c(header[32:], crc32c(header[:28])).to_bytes(4, "little")
    return bytes(header)


# -- the format --------------------------------------------------------------------------------------------------------


def test_the_format_is_unchanged(tmp_path):
    """Golden bytes: a change here makes files unreadable that exist."""
    golden = bytes.fromhex(GOLDEN.read_text())
    assert small_file() == golden
    frames, end = scan(store(tmp_path, golden))
    assert [bytes(frame.data) for frame in frames] == [content(frame) for frame in small_frames(HEADER.first)]
    assert [frame.header.kind for frame in frames] == [
        FrameKind.ENTRIES,
        FrameKind.CURSOR,
        FrameKind.LAC,
        FrameKind.ROLL,
    ]
    assert payload_views(frames[0].record_batch()) == [b"first", b"", b"third", b"another"]
    assert frames[1].cursor_records() == [(b"topic/sub", b"record"), (b"", b"\0")]
    assert frames[3].next_fragment() == 3
    assert isinstance(end, CleanEnd)


def test_names():
    directory = file_directory(Path("p"), INCARNATION, "w00000007")
    assert directory == Path("p/journal") / INCARNATION / "w00000007"
    assert directory.parent == incarnation_directory(Path("p"), INCARNATION)
    assert (open_name(directory).name, fenced_name(directory).name) == ("frames.open", "frames.fenced")
    for bad in ("", "..", "a/b", "-a", "a" * 128, "a\n", "ä"):
        with pytest.raises(InvalidArgumentError, match="file name"):
            file_directory(Path("p"), INCARNATION, bad)


names = st.from_regex(r"[0-9A-Za-z][0-9A-Za-z_-]{0,126}", fullmatch=True)


@given(names, names, st.integers(0, 2**63 - 1), st.integers(0, 2**32 - 1))
def test_file_headers_round_trip(tmp_path_factory, incarnation, file, number, crc):
    header = JournalFileHeader(incarnation, file, ChainPoint(number, crc))
    data = header.encode()
    path = store(tmp_path_factory.getbasetemp(), data + b"frames")
    fd = os.open(path, os.O_RDONLY)
    assert read_file_header(FileBytes(fd), NAME) == (header, ScanPosition(len(data), header.first))
    os.close(fd)
    assert len(data) % 8 == 0


def test_file_headers_that_no_writer_makes(tmp_path):
    data = HEADER.encode()
    with pytest.raises(FormatVersionError, match=r"f has journal format 2.*upgrade"):
        scan(store(tmp_path, resealed(data, 8, b"\2")))
    for position, value in ((12, b"\0"), (12, b"\xff"), (13, b"\0"), (13, b"\x50"), (32, b"/"), (32, b"\xff")):
        with pytest.raises(CorruptJournalError, match="Journal file f"):
            scan(store(tmp_path, resealed(data, position, value)))
    for other in (b"", b"ARROW1", bytes(64), bytes(4096)):
        with pytest.raises(CorruptJournalError, match="Journal file f"):
            scan(store(tmp_path, other))


def test_logs_start_at_different_places():
    assert log_start("a").next_number == 0
    assert log_start("a").crc != log_start("b").crc


# -- making and opening ------------------------------------------------------------------------------------------------


def test_a_file_is_created_once_even_if_it_was_renamed(tmp_path):
    directory = file_directory(tmp_path, INCARNATION, HEADER.file)
    os.close(create_journal_file(tmp_path, INCARNATION, HEADER.file))
    assert [path.name for path in directory.iterdir()] == ["frames.open"]
    for change in (
        lambda: None,
        lambda: open_name(directory).rename(fenced_name(directory)),
        lambda: fenced_name(directory).unlink(),
    ):
        change()
        with pytest.raises(FileExistsError):
            create_journal_file(tmp_path, INCARNATION, HEADER.file)


def test_a_file_is_found_under_either_name(tmp_path):
    directory = file_directory(tmp_path, INCARNATION, HEADER.file)
    with pytest.raises(FileNotFoundError):
        open_journal_file(directory)
    os.close(create_journal_file(tmp_path, INCARNATION, HEADER.file))
    os.close(open_journal_file(directory))
    open_name(directory).rename(fenced_name(directory))
    os.close(open_journal_file(directory))


def test_a_created_file_exists_after_a_crash(tmp_path):
    base, image = tmp_path / "base", tmp_path / "image"
    files = RecordingFiles(tmp_path / "log")
    files.mkdir(base)
    files.fsync_directory(base.parent)
    files.close(create_journal_file(base, INCARNATION, HEADER.file, files))
    recording = files.recording()
    recording.materialise(len(recording.steps), Crash.DROP_ALL, base, image)
    assert open_name(file_directory(image, INCARNATION, HEADER.file)).read_bytes() == b""


@pytest.mark.parametrize("action", ["mkdir", "create", "fsync_directory"])
def test_a_file_that_cannot_be_made_durable_is_an_error(tmp_path, action):
    with pytest.raises(OSError, match="Input/output error"):
        create_journal_file(tmp_path, INCARNATION, HEADER.file, FailingFiles((tmp_path,), action, 0, errno.EIO))
    assert open_files_under(tmp_path) == []
    assert list(tmp_path.glob("journal/*/*")) == [], "a full disk is not filled with empty directories"


# -- scanning ----------------------------------------------------------------------------------------------------------


def test_every_flipped_bit_is_found_at_its_frame(tmp_path):
    data = small_file()
    starts = [len(HEADER.encode())]
    for frame in small_frames(HEADER.first):
        starts.append(starts[-1] + frame.header.size_bytes)
    good, _ = scan(store(tmp_path, data))
    for position in range(len(data)):
        for bit in range(8):
            bad = bytearray(data)
            bad[position] ^= 1 << bit
            path = store(tmp_path, bytes(bad))
            if position < starts[0]:
                with pytest.raises(CorruptJournalError):
                    scan(path)
                continue
            hit = sum(start <= position for start in starts) - 1
            frames, end = scan(path)
            assert isinstance(end, BadFrame)
            assert [frame.data for frame in frames] == [frame.data for frame in good[:hit]]
            assert end.position == ScanPosition(starts[hit], end.position.chain)
            assert end.position.chain.next_number == hit
            assert end.is_last == (hit == len(good) - 1)
            assert end.is_written


def test_truncation_at_every_byte_is_found(tmp_path):
    data = small_file()
    ends = [len(HEADER.encode())]
    for frame in small_frames(HEADER.first):
        ends.append(ends[-1] + frame.header.size_bytes)
    good, _ = scan(store(tmp_path, data))
    for length in range(len(data)):
        path = store(tmp_path, data[:length])
        if length < ends[0]:
            with pytest.raises(CorruptJournalError, match=r"f is (cut short|not a journal file)"):
                scan(path)
            continue
        frames, end = scan(path)
        whole = sum(end <= length for end in ends) - 1
        assert [frame.data for frame in frames] == [frame.data for frame in good[:whole]]
        assert type(end) is (CleanEnd if length in ends else TornEnd)
        assert (end.position.offset, end.position.chain.next_number) == (ends[whole], whole)


def test_a_tail_of_zeros_is_a_bad_last_frame(tmp_path):
    frames, end = scan(store(tmp_path, small_file() + bytes(8192)))
    assert len(frames) == 4
    assert isinstance(end, BadFrame)
    assert end.is_last
    assert not end.is_written


@pytest.mark.parametrize("border", [8, 24, 48])
@pytest.mark.parametrize("lost", ["before", "behind", "both"])
def test_a_header_with_an_unwritten_sector_is_not_damage(tmp_path, border, lost):
    """A frame whose header lies over the border of two sectors, cut from power before it was synced."""
    start = len(HEADER.encode())
    before = encode_cursor([(b"s", b"")], HEADER.first, -1)
    filler = 2 * 512 - border - start - len(content(before))
    before = encode_cursor([(b"s", bytes(filler))], HEADER.first, -1)
    frames, at = content(before), before.header.after
    assert (start + len(frames) + border) % 512 == 0
    data = bytearray(HEADER.encode() + frames + content(encode_entries(group((1, 0, b"x" * 900)), at, -1)))
    head = start + len(frames)
    begin, end = {"before": (head, head + border), "behind": (head + border, len(data)), "both": (head, len(data))}[
        lost
    ]
    data[begin:end] = bytes(end - begin)
    _, found = scan(store(tmp_path, bytes(data)))
    assert isinstance(found, BadFrame)
    assert found.position.offset == head
    assert (found.is_last, found.is_written) == (True, False)


def test_a_stale_block_has_no_place_in_the_chain(tmp_path):
    """Frames with good checksums and the right numbers: of another log, and of another life of this one."""
    ours = frames_of(6)
    other_life = ours[:2] + frames_of(4, at=ChainPoint(2, 12345))
    for stale in (frames_of(6, at=log_start("f" * 32)), other_life):
        data = HEADER.encode() + b"".join(map(content, ours[:2] + stale[2:]))
        frames, end = scan(store(tmp_path, data))
        assert [frame.header for frame in frames] == [frame.header for frame in ours[:2]]
        assert isinstance(end, BadFrame)
        assert "frame 2 does not continue the frame before it" in end.reason
        assert not end.is_last


@pytest.mark.parametrize("there", [[0, 2, 3], [0, 0, 1], [1, 2], [0, 2]])
def test_frames_that_are_missing_or_repeated(tmp_path, there):
    frames = frames_of(4)
    found, end = scan(store(tmp_path, HEADER.encode() + b"".join(content(frames[number]) for number in there)))
    right = [0] if there[0] == 0 else []
    assert [frame.header.number for frame in found] == right
    assert isinstance(end, BadFrame)
    assert f"frame {there[len(right)]} is in the place of frame {len(right)}" in end.reason
    assert not end.is_last


def test_a_repeated_last_frame_ends_the_file(tmp_path):
    frames = frames_of(2)
    _, end = scan(store(tmp_path, HEADER.encode() + b"".join(map(content, (*frames, frames[1])))))
    assert isinstance(end, BadFrame)
    assert end.is_last


def test_frames_within_a_payload_are_not_later_frames_unless_the_header_is_gone(tmp_path):
    inner = b"".join(map(content, frames_of(9)))
    outer = content(encode_entries(group((1, 0, inner)), HEADER.first, -1))
    start = len(HEADER.encode())
    for position, is_last in ((start + len(outer) - 100, True), (start + 20, False)):
        data = bytearray(HEADER.encode() + outer)
        data[position] ^= 1
        _, end = scan(store(tmp_path, bytes(data)))
        assert isinstance(end, BadFrame)
        assert end.is_last == is_last


def test_a_later_frame_is_found_at_a_distance(tmp_path):
    frames = frames_of(3, size=WINDOW_BYTES + 1000)
    data = bytearray(HEADER.encode() + b"".join(map(content, frames)))
    data[len(HEADER.encode())] ^= 1
    _, end = scan(store(tmp_path, bytes(data)))
    assert not end.is_last
    _, end = scan(store(tmp_path, bytes(data[: len(data) // 3])))
    assert end.is_last


@pytest.mark.parametrize("inside", [8, 16, 48, 56])
def test_a_later_header_on_the_border_of_two_windows_is_found(tmp_path, inside):
    start = len(HEADER.encode())
    later = content(frames_of(2)[1])
    data = HEADER.encode() + bytes(WINDOW_BYTES - inside) + later
    assert len(data) - len(later) - start == WINDOW_BYTES - inside
    _, end = scan(store(tmp_path, data))
    assert isinstance(end, BadFrame)
    assert not end.is_last


@pytest.mark.parametrize("size_bytes", [2**32 - 8, 2**31, 64 * 1024 * 1024, 0, 8])
def test_a_length_is_not_believed(tmp_path, size_bytes):
    """Even with a good checksum: nothing is allocated that the file has not."""
    header = bytearray(content(encode_lac(HEADER.first, -1)))
    header[8:12] = size_bytes.to_bytes(4, "little")
    header[-4:] = crc32c(header[:-4]).to_bytes(4, "little")
    files = CountingFiles()
    path = store(tmp_path, HEADER.encode() + bytes(header) + bytes(1000))
    end = scanner_of(path, files).next_frame()
    assert isinstance(end, TornEnd if size_bytes == 64 * 1024 * 1024 else BadFrame)
    assert max(each.size_bytes for each in files.reads) <= path.stat().st_size


def test_a_newer_frame_is_not_taken_for_a_bad_one(tmp_path):
    header = bytearray(content(encode_lac(HEADER.first, -1)))
    header[4] = 2
    header[-4:] = crc32c(header[:-4]).to_bytes(4, "little")
    with pytest.raises(FormatVersionError, match="f, byte 80 has frame format 2"):
        scan(store(tmp_path, HEADER.encode() + bytes(header)))


@pytest.mark.parametrize(("count", "size"), [(5000, 700), (12, 300_000), (3, 3_000_000)])
def test_memory_is_bounded_and_bytes_are_read_once(tmp_path, count, size):
    path = store(tmp_path, HEADER.encode() + b"".join(map(content, frames_of(count, size=size))))
    files = CountingFiles()
    scanner = scanner_of(path, files)
    for number in range(count):
        assert scanner.next_frame().header.number == number
    assert isinstance(scanner.next_frame(), CleanEnd)
    assert max(each.size_bytes for each in files.reads) <= max(WINDOW_BYTES, size + 1000)
    # At the end of a window a frame that began in it is read again: less than one frame each.
    assert sum(each.size_bytes for each in files.reads) < path.stat().st_size * (1.1 if size < 1000 else 2)


def test_frames_that_are_read_ahead_share_a_window_and_are_read_once(tmp_path):
    """A reader may go back to a frame of the window, and read ahead from there."""
    frames = frames_of(40, size=1_000)
    path = store(tmp_path, HEADER.encode() + b"".join(map(content, frames)))
    files = CountingFiles()
    scanner = scanner_of(path, files)
    done = 0
    while done < len(frames):
        scanner.read_ahead(13_000)
        found = []
        for expected in frames[done : done + 8]:
            position = scanner.position
            found.append(scanner.next_frame())
            assert found[-1].window is found[0].window
            assert found[-1].data == content(expected)
        done += len(found)
        if done < len(frames):
            scanner.rewind(position)
            done -= 1
    assert sum(each.size_bytes for each in files.reads) == path.stat().st_size - len(HEADER.encode())


def test_reading_ahead_reads_no_more_than_the_file_has(tmp_path):
    path = store(tmp_path, HEADER.encode())
    scanner = scanner_of(path)
    first, second = frames_of(2)
    for part, expected in ((b"", CleanEnd), (content(first)[:-1], TornEnd)):
        append(path, part)
        scanner.read_ahead(1 << 40)
        assert isinstance(scanner.next_frame(), expected)
    append(path, content(first)[-1:] + content(second))
    scanner.read_ahead(1 << 40)
    assert [bytes(scanner.next_frame().data) for _ in range(2)] == [content(first), content(second)]


def test_half_of_a_write_that_was_read_ahead_is_read_again(tmp_path):
    """A file system may show a file's new length before its last bytes."""
    first, second = map(content, frames_of(2))
    path = store(tmp_path, HEADER.encode() + first + second[:-60] + bytes(30))
    scanner = scanner_of(path)
    scanner.read_ahead(1 << 20)
    assert isinstance(scanner.next_frame(), Frame)
    assert isinstance(scanner.next_frame(), TornEnd)
    path.write_bytes(HEADER.encode() + first + second)
    scanner.read_ahead(1 << 20)
    assert scanner.next_frame().data == second


def test_a_growing_file_is_followed_without_rereading(tmp_path):
    path = store(tmp_path, HEADER.encode())
    files = CountingFiles()
    scanner = scanner_of(path, files)
    for frame in frames_of(50):
        data = content(frame)
        assert isinstance(scanner.next_frame(), CleanEnd)
        for start, end in ((0, 10), (10, 300), (300, len(data) - 1)):
            append(path, data[start:end])
            torn = scanner.next_frame()
            assert isinstance(torn, TornEnd)
            assert torn.position.chain.next_number == frame.header.number
        append(path, data[-1:])
        files.reads.clear()
        assert scanner.next_frame().data == data
        assert [each[1:] for each in files.reads] == [(scanner.position.offset - len(data), len(data))]
    files.reads.clear()
    assert isinstance(scanner.next_frame(), CleanEnd)
    assert files.reads == []


def test_a_scan_continues_from_a_position(tmp_path):
    path = store(tmp_path, small_file())
    first = scanner_of(path)
    first.next_frame()
    second = FrameScanner(FileBytes(os.open(path, os.O_RDONLY)), first.position, NAME)
    assert second.next_frame().header == first.next_frame().header
    assert second.position == first.position


def test_a_bad_frame_is_read_from_the_file_each_time(tmp_path):
    data = bytearray(small_file())
    data[-1] ^= 1
    path = store(tmp_path, bytes(data))
    scanner = scanner_of(path)
    assert scanner.seek(3) is None
    assert isinstance(scanner.next_frame(), BadFrame)
    path.write_bytes(small_file())
    assert scanner.next_frame().next_fragment() == 3


def test_a_file_that_has_shrunk_lost_frames(tmp_path):
    path = store(tmp_path, small_file())
    scanner = scanner_of(path)
    assert scanner.seek(4) is None
    os.truncate(path, 200)
    scanner = FrameScanner(FileBytes(os.open(path, os.O_RDONLY)), scanner.position, NAME)
    end = scanner.next_frame()
    assert isinstance(end, BadFrame)
    assert "shrunk to 200 bytes" in end.reason
    assert not end.is_last


def test_frames_are_sought_by_number(tmp_path):
    path = store(tmp_path, HEADER.encode() + b"".join(map(content, frames_of(20))))
    for checked_before in (False, True):
        scanner = scanner_of(path, checked_before=checked_before)
        assert scanner.seek(7) is None
        assert scanner.next_frame().header.number == 7
        with pytest.raises(InvalidArgumentError, match="at frame 8"):
            scanner.seek(7)
        end = scanner.seek(30)
        assert isinstance(end, CleanEnd)
        assert end.position.chain.next_number == 20


def test_contents_are_skipped_where_they_were_checked_before(tmp_path):
    at = HEADER.first
    frames = []
    for number in range(5):
        payloads = [(ledger, number, bytes([ledger]) * 50_000) for ledger in (1, 2, 3)]
        frames.append(encode_entries(group(*payloads, (2, number + 1, b"more")), at, number - 1))
        at = frames[-1].header.after
    path = store(tmp_path, HEADER.encode() + b"".join(map(content, frames)))
    with pytest.raises(InvalidArgumentError, match="use next_frame"):
        scanner_of(path).next_head()
    files = CountingFiles()
    whole, heads = scanner_of(path), scanner_of(path, files, checked_before=True)
    for _ in range(5):
        frame, head = whole.next_frame(), heads.next_head()
        assert isinstance(frame, Frame)
        assert not isinstance(head, Frame)
        assert (head.header, head.runs(), head.offset) == (frame.header, frame.runs(), frame.offset)
        crcs = part_crcs(head, frame.data)
        for index, run in enumerate(head.runs()):
            batch = read_run(FileBytes(os.open(path, os.O_RDONLY), files), head, index, crcs)
            batch.validate(full=True)
            assert batch == frame.record_batch().slice(run.first_row, run.entries)
        assert max(each.size_bytes for each in files.reads) <= max(HEADS_WINDOW_BYTES, 50_004)
    assert heads.next_head() == whole.next_frame()


def test_heads_are_checked_and_must_have_their_content(tmp_path):
    data = small_file()
    start = len(HEADER.encode())
    scanner = scanner_of(store(tmp_path, data[: start + 500]), checked_before=True)
    assert isinstance(scanner.next_head(), TornEnd)
    for position in range(start, start + 56 + 64):
        bad = bytearray(data)
        bad[position] ^= 4
        end = scanner_of(store(tmp_path, bytes(bad)), checked_before=True).next_head()
        assert isinstance(end, BadFrame)
        assert not end.is_last
    whole = scanner_of(store(tmp_path, data), checked_before=True)
    head = whole.next_head()
    whole_frame = scanner_of(store(tmp_path, data)).next_frame()
    cut = os.open(store(tmp_path, data[: start + 500]), os.O_RDONLY)
    with pytest.raises(CorruptJournalError, match="cut short"):
        read_run(FileBytes(cut), head, 0, part_crcs(head, whole_frame.data))


def test_a_disk_that_cannot_be_read_is_an_error(tmp_path):
    path = store(tmp_path, small_file())
    files = FailingFiles((tmp_path,), "read_into", 1, errno.EIO)
    fd = files.open(path)
    scanner = FrameScanner(FileBytes(fd, files), read_file_header(FileBytes(fd, files), NAME)[1], NAME)
    with pytest.raises(StoragePathError, match=r"Journal file f cannot be read .*Input/output error"):
        scanner.next_frame()


@pytest.mark.parametrize("checked_before", [False, True])
def test_frames_before_a_bad_sector_are_read(tmp_path, monkeypatch, checked_before):
    """The window that is read at once ends there; a disk may take seconds for each attempt to read it."""
    data = small_file()
    bad_at = len(data) - 1
    scanner = scanner_of(store(tmp_path, data), checked_before=checked_before)
    failures = bad_disk(monkeypatch, bad_at)
    read = scanner.next_head if checked_before else scanner.next_frame
    frames = small_frames(HEADER.first)
    assert [read().header for _ in frames[:-1]] == [frame.header for frame in frames[:-1]]
    if checked_before:
        assert read().header == frames[-1].header, "the bad sector is in the content"
    else:
        with pytest.raises(StoragePathError, match="Input/output error"):
            read()
    assert len(failures) <= 2


def test_what_is_behind_a_bad_sector_is_unknown(tmp_path, monkeypatch):
    """It is no end of the file, at whatever byte the sector begins."""
    data = small_file()
    frames = small_frames(HEADER.first)
    ends = [*accumulate(map(len, (HEADER.encode(), *map(content, frames))))]
    for bad_at in range(ends[0], len(data)):
        scanner = scanner_of(store(tmp_path, data))
        with monkeypatch.context() as patch:
            bad_disk(patch, bad_at)
            for _ in range(bisect_right(ends, bad_at) - 1):
                assert isinstance(scanner.next_frame(), Frame)
            with pytest.raises(StoragePathError):
                scanner.next_frame()


@given(st.binary(max_size=400), st.integers(0, 2), st.booleans())
def test_garbage_after_good_frames_is_never_a_frame(tmp_path_factory, garbage, good, with_magic):
    frames = small_frames(HEADER.first)[:good]
    data = HEADER.encode() + b"".join(map(content, frames)) + b"PSJF\1\0" * with_magic + garbage
    found, end = scan(store(tmp_path_factory.getbasetemp(), data))
    assert [frame.header for frame in found] == [frame.header for frame in frames]
    assert isinstance(end, CleanEnd) == (not garbage and not with_magic)


@given(st.binary(max_size=600))
def test_garbage_files_give_one_error(tmp_path_factory, garbage):
    with pytest.raises(CorruptJournalError):
        scan(store(tmp_path_factory.getbasetemp(), garbage))


# -- following headers -------------------------------------------------------------------------------------------------


def test_headers_are_followed_up_to_the_last_complete_frame(tmp_path):
    """Over windows, and over frames that are longer than one; each cut ends before the frame that it hits."""
    frames = []
    at = HEADER.first
    for number in range(60):
        payload = b"x" * (40_000 if number % 7 == 0 else 300)
        frames.append(encode_entries(group((1, number, payload)), at, number - 3 if number > 2 else -1))
        at = frames[-1].header.after
    data = HEADER.encode() + b"".join(map(content, frames))
    ends = list(accumulate((frame.header.size_bytes for frame in frames), initial=len(HEADER.encode())))
    for cut in (len(data), len(data) - 1, ends[30], ends[30] + 55, ends[30] - 8, ends[0]):
        path = store(tmp_path, data[:cut])
        fd = os.open(path, os.O_RDONLY)
        scanner = FrameScanner(FileBytes(fd), read_file_header(FileBytes(fd), NAME)[1], NAME, checked_before=True)
        lac, before = -1, None
        while scanner.position != before:
            before = scanner.position
            lac = max(lac, scanner.follow())
        whole = sum(end <= cut for end in ends[1:])
        assert scanner.position.offset == ends[whole]
        assert scanner.position.chain == (frames[whole - 1].header.after if whole else HEADER.first)
        assert lac == max((frame.header.lac for frame in frames[:whole]), default=-1)
        assert not isinstance(scanner.next_head(), FrameHead)
        os.close(fd)


def test_no_flipped_bit_of_a_header_is_followed(tmp_path):
    data = small_file()
    starts = [frame.offset for frame in scan(store(tmp_path, data))[0]]
    for bit in range(8 * starts[1], 8 * (starts[1] + 56)):
        harmed = bytearray(data)
        harmed[bit // 8] ^= 1 << bit % 8
        fd = os.open(store(tmp_path, bytes(harmed)), os.O_RDONLY)
        scanner = FrameScanner(FileBytes(fd), read_file_header(FileBytes(fd), NAME)[1], NAME, checked_before=True)
        scanner.follow()
        assert scanner.position.offset == starts[1]
        os.close(fd)


def test_headers_are_followed_only_where_checksums_were_checked(tmp_path):
    fd = os.open(store(tmp_path, small_file()), os.O_RDONLY)
    with pytest.raises(InvalidArgumentError, match="use next_frame"):
        FrameScanner(FileBytes(fd), read_file_header(FileBytes(fd), NAME)[1], NAME).follow()
    os.close(fd)
