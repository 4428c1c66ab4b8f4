"""Reading a log's frames in order while it is written, sealed, trimmed or recovered: `LogWalk`, without IO.

    read the main table -> open a file of each fragment that it names -> read the main table again, until no file had to
    be opened -> read frame by frame

Files are opened before the metadata are read. If a file was trimmed and deleted before it could be opened, the metadata
then show that its entries are sealed. In the other order, a reader would find entries that were sealed in between
neither in files nor in the metadata. An open file can be read after its deletion.

One good copy of a frame is enough, whichever writer or recovery wrote it: a number means the same frame in every file
of a log. If a copy lacks the frame or has it damaged, another copy is tried. If no copy has the frame, it may still be
written, unless it is proved to be acknowledged. An acknowledged frame is due: its absence is an error, and it is never
skipped. Frames are read in order, and a file is left only at the end of its fragment, so a frame that is written after
the last read is never mistaken for a lost frame.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest

from pulsar_on_spark.ledger.journal.log import (
    NO_FRAME,
    Copy,
    Fragment,
    FrameNumber,
    LogRecord,
    LogState,
    fragment_of,
    in_reading_order,
)
from pulsar_on_spark.ledger.journal.sealing import readable_to
from pulsar_on_spark.model.ids import PathId

_NOTHING_YET = LogRecord(LogState.OPEN, 0, 0, ())


class LogWalk:
    """The next frame of a reader, the copies that may have it, and the frames that are proved to be acknowledged.

    Attributes:
        next: The number of the next frame.
        lac: The highest LAC in the frames so far.
        copy: The copy in use, which is tried first for the next frame; None if no copy is in use.
    """

    def __init__(self, begin: FrameNumber = 0, spread: int = 0) -> None:
        """Begin a walk, before the main table is read.

        Args:
            begin: The first frame of interest.
            spread: The log's `spread_of`, by which readers choose the copy that they try first.
        """
        self.next = begin
        self.lac: FrameNumber = NO_FRAME
        self.copy: Copy | None = None
        self._spread = spread
        self._record = _NOTHING_YET
        self._resolved = _NOTHING_YET
        self._fragment: Fragment | None = None
        self._fragment_end: FrameNumber | None = None
        self._firsts: dict[Copy, FrameNumber] = {}
        self._files: dict[Copy, bool] = {}
        self._failing: set[PathId] = set()
        """The paths whose last file could not be opened or read: an object store may take a minute to fail."""
        self._opened_since_main = False
        self._found_none = False

    # -- main and files ------------------------------------------------------------------------------------------------

    def main_read(self, record: LogRecord, begin: FrameNumber) -> None:
        """Apply the main table's current record.

        Args:
            record: The log's record.
            begin: The first unsealed frame in the same view; frames before it are skipped.
        """
        self._record = record
        self._opened_since_main = self._found_none = False
        if self.next < begin:
            self.next, self.copy = begin, None
        self._enter()

    @property
    def is_ready(self) -> bool:
        """True if frames may be read: all files were tried, and the main table was read after the last attempt."""
        return not self._opened_since_main and self.to_open() is None

    def to_open(self) -> Copy | None:
        """Return the next file to open; None if each unread fragment has an open file, or all its files were tried."""
        for fragment in self._ahead():
            if not any(self._files.get(copy) for copy in fragment.copies):
                untried = [copy for copy in self._in_order(fragment) if copy not in self._files]
                if untried:
                    return untried[0]
        return None

    def opened(self, copy: Copy, is_open: bool) -> None:
        """Record the outcome of an attempt to open a file under either name, on a path whose identity was checked."""
        self._files[copy] = is_open
        self._opened_since_main = True
        if is_open:
            self._failing.discard(copy.path)
        else:
            self._failing.add(copy.path)

    def has_tried(self, copy: Copy) -> bool:
        """Return True if the file is open, or could not be opened since the last `forget_failures`."""
        return copy in self._files

    def on_copy_lost(self, copy: Copy) -> None:
        """Record that an open file cannot be read and was closed."""
        self._files[copy] = False
        self._failing.add(copy.path)
        if self.copy == copy:
            self.copy = None

    def all_closed(self) -> None:
        """Record that all files were closed, so that each of them may be opened again."""
        self._files.clear()
        self.copy = None

    def passed_files(self) -> list[Copy]:
        """Return the open files that are no longer needed, for the caller to close."""
        needed = {copy for fragment in self._ahead() for copy in fragment.copies}
        passed = [copy for copy in self._files if copy not in needed]
        return [copy for copy in passed if self._files.pop(copy)]

    def forget_failures(self) -> None:
        """Allow another attempt at the files that could not be opened."""
        self._files = {copy: is_open for copy, is_open in self._files.items() if is_open}

    # -- frames --------------------------------------------------------------------------------------------------------

    @property
    def last_readable(self) -> FrameNumber:
        """The last frame that may be read, which is at most the proved LAC."""
        return readable_to(self._record, self.lac)

    @property
    def is_due(self) -> bool:
        """True if the next frame is acknowledged, so that some copy must have it."""
        return self.next <= self.last_readable

    @property
    def is_stuck(self) -> bool:
        """True if the next frame is due and no copy has it."""
        return self._found_none and self.is_due

    def others(self, *, every: bool = False) -> Sequence[Copy]:
        """Return the copies to try, in order, for the next frame if the copy in use lacks this frame.

        Files of a prepared fragment are among them, because their headers may name its first frame before the main
        table does.

        Args:
            every: True to return every copy, even if the frame need not exist.
        """
        if self._fragment is None:
            return ()
        prepared = self._in_order(self._prepared) if self._prepared is not None and self._fragment_end is None else []
        if self.copy is not None and not every and not self.is_due:
            return prepared
        return [*(copy for copy in self._in_order(self._fragment) if copy != self.copy), *prepared]

    def use(self, copy: Copy, first: FrameNumber) -> None:
        """Use this copy from the next frame on; `first` is the copy's first frame."""
        assert first <= self.next, "a file has no frame before its first"
        self._firsts[copy] = first
        self.copy = copy
        self._enter()

    def took(self, number: FrameNumber, lac: FrameNumber) -> None:
        """Record that frame `number`, the next frame, was read from the copy in use. Its header names `lac`."""
        assert number == self.next, "frames come in order"
        self.next = number + 1
        if lac > self.lac:
            self.lac = lac
        if self.next == self._fragment_end:
            self._enter()

    def found_none(self) -> None:
        """Record that all copies that were tried lack the next frame; if the frame is due, the walk is stuck."""
        self._found_none = True

    def rewind(self, number: FrameNumber) -> None:
        """Go back to a frame that was read."""
        self.next = number
        self._enter()

    def restart(self) -> None:
        """Begin again at the first unsealed frame, which the next `main_read` sets."""
        self.next, self.copy = 0, None

    def skip_hole(self) -> FrameNumber | None:
        """Go to the first frame of the next fragment, for a reader that may skip lost frames.

        Returns:
            The frame; None if the next frame is not due, or no fragment follows.
        """
        later = [f.first for f in self._resolved.fragments if f.first is not None and f.first > self.next]
        if not self.is_due or not later:
            return None
        self.copy = None  # its file may still hold the skipped frames
        self.rewind(later[0])
        return later[0]

    @property
    def resolved(self) -> LogRecord:
        """The record, completed by the first frame of the prepared fragment if one of its files has begun.

        It shows in which files a frame is. Only the record itself proves which frames are acknowledged.
        """
        return self._resolved

    # -- fragments -----------------------------------------------------------------------------------------------------

    def _enter(self) -> None:
        """Find the fragment of the next frame, and keep the copy in use only if it belongs to that fragment."""
        self._resolved = self._with_prepared()
        last = self._record.last_frame
        ended = last is not None and self.next > last
        self._fragment = None if ended else fragment_of(self._resolved, self.next)
        self._fragment_end = next((first for first in self._begins() if first > self.next), None)
        if self._fragment is None or self.copy not in self._fragment.copies:
            self.copy = None

    @property
    def _prepared(self) -> Fragment | None:
        """The fragment that was prepared ahead, while its first frame is unknown; None if there is none."""
        last = self._resolved.fragments[-1] if self._resolved.fragments else None
        return last if last is not None and last.first is None else None

    def _with_prepared(self) -> LogRecord:
        *earlier, last = self._record.fragments or (None,)
        if last is None or last.first is not None:
            return self._record
        first = next((self._firsts[copy] for copy in last.copies if copy in self._firsts), None)
        return replace(self._record, fragments=(*earlier, Fragment(first, last.copies)))

    def _begins(self) -> list[FrameNumber]:
        """Return the first frames of fragments, followed by the end of a CLOSED log."""
        last = self._record.last_frame
        firsts = [fragment.first for fragment in self._resolved.fragments if fragment.first is not None]
        return firsts if last is None else [*firsts, last + 1]

    def _ahead(self) -> Iterator[Fragment]:
        """Iterate over the fragments that have frames not read yet."""
        ends = self._begins()[1:]
        for fragment, end in zip_longest(self._resolved.fragments, ends):
            if end is None or end > self.next:
                yield fragment

    def _in_order(self, fragment: Fragment) -> list[Copy]:
        """Return the fragment's open copies first, then other copies, and those on failing paths last.

        Within these three groups, the copies are in reading order.
        """
        spread = in_reading_order(fragment.copies, self._spread)
        return sorted(spread, key=lambda copy: (not self._files.get(copy), copy.path in self._failing))
