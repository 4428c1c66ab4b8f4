"""Simulated files on an object store: numbered objects that are created once, listed, and deleted one by one.

Answers are linearizable, as the engine requires of stores. What is late, doubled or lost, are requests and replies.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import takewhile

from typing_extensions import override

from pulsar_on_spark.ledger.journal.copy_protocol import ScanEnd
from pulsar_on_spark.ledger.journal.log import NO_FRAME, Copy
from pulsar_on_spark.ledger.journal.object_protocol import BIRTH, Looked, ObjectsScanned
from tests.simulators.journal.disk import FENCED_NAME, OPEN_NAME, SimFrame, SimPath


@dataclass(frozen=True, slots=True)
class SimObject:
    """An object; without frames it is the birth or a fence. `confirmed`: see `PutObject`."""

    token: str
    frames: tuple[SimFrame, ...] = ()
    confirmed: int = BIRTH


@dataclass(slots=True, eq=False)
class SimObjects:
    """A journal file on an object store; what is not said here is as in `SimFile`.

    Attributes:
        objects: What is there now.
        frames: The frames that the prefix has, or had before objects were deleted.
        is_robbed: Somebody deleted an object that was needed.
    """

    copy: Copy
    objects: dict[int, SimObject] = field(default_factory=dict)
    frames: list[SimFrame] = field(default_factory=list)
    damaged_at: int | None = None
    damaged_header: bool = False
    holed: bool = False
    is_robbed: bool = False
    is_lost: bool = False
    _fence: int | None = None
    _ever: dict[int, SimObject] = field(default_factory=dict)
    _counted: int = BIRTH

    def create(self, number: int, given: SimObject) -> SimObject:
        """Create an object if it is absent; returns the one that is there then.

        What is put into a lost file counts for the checks as if the lost store had taken it.
        """
        if number not in self.objects:
            if not given.frames and self.is_there and number <= self._counted + 1 and self._fence is None:
                self._fence = number
            self.objects[number] = given
            if given.frames and (self._fence is None or number < self._fence or self.is_robbed):
                self._ever[number] = given
                self._count()
        return self.objects[number]

    def _count(self) -> None:
        while self._counted + 1 in self._ever:
            self._counted += 1
            self.frames += self._ever[self._counted].frames

    def gap(self) -> int:
        """The first number that is absent or a fence."""
        number = BIRTH + 1
        while number in self.objects and self.objects[number].frames:
            number += 1
        return number

    def look(self) -> Looked:
        """List all objects."""
        gap = self.gap()
        return Looked(gap, gap in self.objects, max(self.objects, default=BIRTH))

    # -- what the checks ask -------------------------------------------------------------------------------------------

    @property
    def is_there(self) -> bool:
        """True if the store says that it is there."""
        return BIRTH in self.objects and not self.is_lost

    @property
    def first(self) -> int | None:
        """The file's first frame, once it has one."""
        return self.frames[0].facts.number if self.frames else None

    @property
    def ever_durable(self) -> int:
        """The last frame that the prefix ever had."""
        return self.frames[-1].facts.number if self.frames else NO_FRAME

    @property
    def durable_name(self) -> str:
        """Whether the prefix is ended by a fence, in the words of a local file."""
        return FENCED_NAME if self._fence in self.objects else OPEN_NAME

    def at(self, number: int) -> SimFrame:
        """The frame of this number."""
        assert self.first is not None, "the file has frames"
        return self.frames[number - self.first]

    def good_end(self) -> int | None:
        """Behind the last frame that a reader gets from the front; None if it gets none."""
        whole = self._whole() if self.is_there else []
        return whole[-1].frames[-1].facts.number + 1 if whole else None

    def ends_badly(self) -> bool:
        """True if a bad object follows the last good one."""
        return self.damaged_at is not None and self.damaged_at < len(self.frames)

    def is_sound(self) -> bool:
        """True if the file can be read to its end."""
        return not (self.ends_badly() or self.is_robbed)

    def _is_damaged(self, each: SimObject) -> bool:
        """True if the object has the bad frame."""
        if self.damaged_at is None or self.first is None:
            return False
        return each.frames[0].facts.number <= self.first + self.damaged_at <= each.frames[-1].facts.number

    def _whole(self) -> list[SimObject]:
        """The prefix, up to the first object that is bad or was deleted."""
        prefix = [self.objects[number] for number in range(BIRTH + 1, self.gap())]
        return list(takewhile(lambda each: not self._is_damaged(each), prefix))

    # -- what the recoverers ask ---------------------------------------------------------------------------------------

    def scan(self, start: int, limit: int, end: int) -> ObjectsScanned:
        """Return the frames that a scan of the objects before `end` finds; a bad object hides all behind it."""
        behind = [each for number, each in self.objects.items() if number >= end and each.frames]
        lac_behind = max((frame.facts.lac for each in behind for frame in each.frames), default=NO_FRAME)
        whole = self._whole()[: end - 1]
        frames = [frame.facts for each in whole for frame in each.frames]
        scan_end = ScanEnd.CLEAN if len(whole) == end - 1 else ScanEnd.DAMAGED
        lac = max((facts.lac for facts in frames), default=NO_FRAME)
        first = frames[0].number if frames else None
        confirmed = max((each.confirmed for each in behind), default=BIRTH)
        wanted = tuple(facts for facts in frames if first is not None and facts.number >= start >= first)
        if len(wanted) > limit:
            wanted, scan_end = wanted[:limit], ScanEnd.LIMIT
        return ObjectsScanned(first, wanted, scan_end, lac, lac_behind, confirmed)

    # -- what goes wrong, and what is deleted --------------------------------------------------------------------------

    def rob(self) -> bool:
        """Delete an object of the prefix behind which there is proof that it was there."""
        for number in range(self.gap() - 1, BIRTH, -1):
            if any(each.confirmed >= number for each in self.objects.values()):
                del self.objects[number]
                self.is_robbed = True
                return True
        return False

    def next_to_delete(self) -> int | None:
        """The next object that collection deletes: the birth, then data, never a fence."""
        if BIRTH in self.objects:
            return BIRTH
        return next((number for number, each in sorted(self.objects.items()) if self.may_delete(each)), None)

    def may_delete(self, each: SimObject) -> bool:
        """True for data."""
        return bool(each.frames)


class SimStore(SimPath):
    """A storage path on an object store: what it has answered for is durable, and it is never half there."""

    @override
    def new_file(self, copy: Copy) -> SimObjects:
        """Create a file by its birth."""
        return SimObjects(copy, {BIRTH: SimObject("")})

    @override
    def crash(self, rng: random.Random) -> None:
        """Lose nothing."""

    @override
    def delete_next(self, copy: Copy) -> bool:
        """Delete the next object, until only fences are left."""
        file = self.files.get(copy)
        assert file is None or isinstance(file, SimObjects), "a store has objects"
        number = None if file is None else file.next_to_delete()
        if file is not None and number is not None:
            del file.objects[number]
        return number is not None
