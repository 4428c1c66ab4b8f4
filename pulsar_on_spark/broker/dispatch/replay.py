"""The replay queue: entries that were read before and wait for a consumer, in one line for each possible consumer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush

from pulsar_on_spark.broker.dispatch.consumer import EntryPosition

Line = int
"""The number of a line in the replay queue: the id of the consumer that gets its entries, `ANYONE`, or a negative
number for a line from which no consumer takes entries now."""

ANYONE: Line = 0
"""The line whose entries any consumer may get."""


class Replay:
    """The positions of waiting entries, each with its group (see `pool.py`), in lines sorted by ledger and entry.

    `take_positions` returns positions to read, which count as waiting until they are removed or put back.
    """

    __slots__ = ("_groups", "_in_group", "_lines", "_taken")

    def __init__(self) -> None:
        self._groups: dict[EntryPosition, int] = {}
        self._in_group: dict[int, int] = {}
        self._lines: dict[Line, list[EntryPosition]] = {}
        """A heap for each line. Removed positions, which are not in `_groups`, stay until they are the smallest."""
        self._taken: dict[EntryPosition, None] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def __contains__(self, position: EntryPosition) -> bool:
        return position in self._groups

    def waiting(self, group: int) -> int:
        """Return the number of waiting entries of a group."""
        return self._in_group.get(group, 0)

    def add(self, position: EntryPosition, group: int, line: Line) -> None:
        """Add the position of an entry of a group to a line; it must not be in the queue yet."""
        assert position not in self._groups, f"{position} waits already"
        self._join(position, group)
        heappush(self._lines.setdefault(line, []), position)

    def regroup(self, position: EntryPosition, group: int) -> None:
        """Change the group of a position that `take_positions` returned."""
        assert position in self._taken, f"{position} is in a line"
        self._leave(position)
        self._join(position, group)

    def remove(self, position: EntryPosition) -> None:
        """Remove a position, if it is waiting."""
        if position in self._groups:
            self._leave(position)
            self._taken.pop(position, None)

    def take_positions(self, lines: Iterable[Line], most: int) -> list[EntryPosition]:
        """Take at most `most` positions from some lines, and return them sorted by ledger and entry."""
        heads = [(heap[0], line) for line in lines if (heap := self._lines.get(line))]
        heapify(heads)
        taken: list[EntryPosition] = []
        while heads and len(taken) < most:
            _, line = heappop(heads)
            heap = self._lines[line]
            position = heappop(heap)
            if position in self._groups:
                taken.append(position)
            if heap:
                heappush(heads, (heap[0], line))
            else:
                del self._lines[line]
        self._taken.update(dict.fromkeys(taken))
        return taken

    def put_back(self, line_of: Callable[[int], Line]) -> None:
        """Put the taken positions that were not removed back into lines; `line_of` returns the line of a group."""
        for position in self._taken:
            heappush(self._lines.setdefault(line_of(self._groups[position]), []), position)
        self._taken.clear()

    def move(self, old: Line, new: Line) -> None:
        """Move all positions of one line to another."""
        moved = self._lines.pop(old, None)
        if moved:
            into = self._lines.setdefault(new, [])
            if len(moved) * 8 > len(into):
                into += moved
                heapify(into)
            else:
                for position in moved:
                    heappush(into, position)

    def line_up(self, line_of: Callable[[int], Line]) -> None:
        """Move all positions to the lines that `line_of` returns for their groups, after consumers have changed."""
        self._lines = {}
        for position, group in self._groups.items():
            if position not in self._taken:
                self._lines.setdefault(line_of(group), []).append(position)
        for heap in self._lines.values():
            heapify(heap)

    def clear(self) -> None:
        """Remove all positions."""
        self.__init__()  # type: ignore[misc]

    def remove_if(self, is_gone: Callable[[int, int], bool]) -> None:
        """Remove the positions (ledger, entry) for which `is_gone` returns True."""
        for position in [position for position in self._groups if is_gone(*position)]:
            self.remove(position)

    def _join(self, position: EntryPosition, group: int) -> None:
        self._groups[position] = group
        self._in_group[group] = self._in_group.get(group, 0) + 1

    def _leave(self, position: EntryPosition) -> None:
        group = self._groups.pop(position)
        self._in_group[group] -= 1
        if not self._in_group[group]:
            del self._in_group[group]
