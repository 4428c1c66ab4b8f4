"""The replay queue: entries that were read before and wait for a consumer, in one line per possible consumer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush

from pulsar_on_spark.broker.dispatch.consumer import Place

Line = int
"""The consumer of a line's entries: its id, `ANYONE`, or a negative number for a line that is blocked."""

ANYONE: Line = 0


class Replay:
    """Positions with their group (`pool.py`), each in one line, sorted in topic order within a line.

    `take_positions` returns positions to read; they count as waiting until they are removed or put back.
    """

    __slots__ = ("_groups", "_in_group", "_lines", "_taken")

    def __init__(self) -> None:
        self._groups: dict[Place, int] = {}
        self._in_group: dict[int, int] = {}
        self._lines: dict[Line, list[Place]] = {}
        """A heap per line. Removed positions, which are not in `_groups`, are dropped when they come up."""
        self._taken: dict[Place, None] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def __contains__(self, place: Place) -> bool:
        return place in self._groups

    def waiting(self, group: int) -> int:
        """Return the number of waiting entries of a group."""
        return self._in_group.get(group, 0)

    def add(self, place: Place, group: int, line: Line) -> None:
        """Add a position that is not waiting yet."""
        assert place not in self._groups, f"{place} waits already"
        self._join(place, group)
        heappush(self._lines.setdefault(line, []), place)

    def regroup(self, place: Place, group: int) -> None:
        """Change the group of a taken position."""
        assert place in self._taken, f"{place} is in a line"
        self._leave(place)
        self._join(place, group)

    def remove(self, place: Place) -> None:
        """Remove a position, if it is waiting."""
        if place in self._groups:
            self._leave(place)
            self._taken.pop(place, None)

    def take_positions(self, lines: Iterable[Line], most: int) -> list[Place]:
        """Take the first positions of some lines, in topic order."""
        heads = [(heap[0], line) for line in lines if (heap := self._lines.get(line))]
        heapify(heads)
        found: list[Place] = []
        while heads and len(found) < most:
            _, line = heappop(heads)
            heap = self._lines[line]
            place = heappop(heap)
            if place in self._groups:
                found.append(place)
            if heap:
                heappush(heads, (heap[0], line))
            else:
                del self._lines[line]
        self._taken.update(dict.fromkeys(found))
        return found

    def put_back(self, line_of: Callable[[int], Line]) -> None:
        """Put taken positions that were not removed back into their lines."""
        for place in self._taken:
            heappush(self._lines.setdefault(line_of(self._groups[place]), []), place)
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
                for place in moved:
                    heappush(into, place)

    def line_up(self, line_of: Callable[[int], Line]) -> None:
        """Rebuild all lines after consumers have changed."""
        self._lines = {}
        for place, group in self._groups.items():
            if place not in self._taken:
                self._lines.setdefault(line_of(group), []).append(place)
        for heap in self._lines.values():
            heapify(heap)

    def clear(self) -> None:
        """Remove all positions."""
        self.__init__()  # type: ignore[misc]

    def remove_if(self, is_gone: Callable[[int, int], bool]) -> None:
        """Remove the positions that are acknowledged."""
        for place in [place for place in self._groups if is_gone(*place)]:
            self.remove(place)

    def _join(self, place: Place, group: int) -> None:
        self._groups[place] = group
        self._in_group[group] = self._in_group.get(group, 0) + 1

    def _leave(self, place: Place) -> None:
        group = self._groups.pop(place)
        self._in_group[group] -= 1
        if not self._in_group[group]:
            del self._in_group[group]
