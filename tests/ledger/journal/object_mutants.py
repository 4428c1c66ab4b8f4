"""Mutants of the rules of journal files on object stores, which `test_mutants` installs for the simulator to find."""

from __future__ import annotations

from dataclasses import replace

from pulsar_on_spark.ledger.journal import object_protocol
from pulsar_on_spark.ledger.journal.copy_protocol import ReadFrames, ScanEnd
from pulsar_on_spark.ledger.journal.log import FrameNumber
from pulsar_on_spark.ledger.journal.object_protocol import (
    FenceResult,
    Looked,
    ObjectAppendEffect,
    ObjectAppender,
    ObjectReadEffect,
    ObjectReader,
    ObjectsScanned,
    PutObject,
)
from tests.ledger.journal.mutants import MUTANTS, Mutant
from tests.simulators.journal.object_disk import SimObject, SimObjects

_looked = ObjectReader._looked
_fence_put = ObjectReader._fence_put


def _all_is_deleted(self: SimObjects, each: SimObject) -> bool:
    return True


def _behind_the_listing(self: ObjectReader, looked: Looked) -> int:
    return looked.last + 1


def _exists_means_created(self: ObjectAppender, token: str) -> bool:
    return True


def _objects_counted(self: ObjectAppender) -> FrameNumber:
    return max(self._watermark, *self._confirmed.values())


def _no_fence(self: ObjectReader, looked: Looked) -> list[ObjectReadEffect]:
    assert looked.end is not None, "the profile is healthy"
    self._end = looked.end
    return self._fenced()


def _missing_birth_is_empty(self: ObjectReader) -> list[ObjectReadEffect]:
    self._is_fenced = True
    return self._answer(ObjectsScanned(None, (), ScanEnd.CLEAN))


def _lac_of_the_prefix(self: ObjectReader, scanned: ObjectsScanned) -> FrameNumber:
    return scanned.lac


def _holes_are_ends(self: ObjectReader, scanned: ObjectsScanned) -> bool:
    return self._is_fenced and scanned.end is ScanEnd.CLEAN


def _taken_means_fenced(self: ObjectReader, result: FenceResult) -> list[ObjectReadEffect]:
    return _fence_put(self, FenceResult.DONE if result is FenceResult.TAKEN else result)


def _fails_means_fenced(self: ObjectReader, result: FenceResult) -> list[ObjectReadEffect]:
    return _fence_put(self, FenceResult.DONE if result is FenceResult.FAILED else result)


def _more_frames_after_an_error(self: ObjectAppender, number: int) -> list[ObjectAppendEffect]:
    cut = self._on_their_way.get(number)
    if cut is None:
        return []
    if number == self._last_cut:
        self._waiting.clear()
        self._waiting_bytes = 0
        cut = self._on_their_way[number] = replace(cut, last=self._given)
    return [PutObject(number, cut.first, cut.last, cut.confirmed)]


def _unfenced_no(self: ObjectReader, scanned: ObjectsScanned) -> bool:
    return scanned.end is ScanEnd.CLEAN


def _fences_only_when_asked(self: ObjectReader) -> list[ObjectReadEffect]:
    return self._scan() if isinstance(self._current, ReadFrames) else [object_protocol.Look()]


_PREFIX_ONLY = ((ObjectReader, "_known_lac", _lac_of_the_prefix), (ObjectReader, "_may_say_no", _holes_are_ends))

OBJECT_MUTANTS = (
    Mutant("collection deletes fences", ((SimObjects, "may_delete", _all_is_deleted),), "objects collected"),
    Mutant("the fence behind the listing's end", ((ObjectReader, "_fence_at", _behind_the_listing),), "objects, busy"),
    Mutant("412 taken as success", ((ObjectAppender, "_is_mine", _exists_means_created),), "objects 1/1/1"),
    Mutant("objects counted, not the prefix", ((ObjectAppender, "_counted", _objects_counted),), "objects 3/3/2"),
    Mutant("no fence", ((ObjectReader, "_looked", _no_fence),), "objects recovered"),
    Mutant("a missing birth is an empty file", ((ObjectReader, "_missing", _missing_birth_is_empty),), "objects 3/3/2"),
    Mutant("objects behind a deleted one are not read", _PREFIX_ONLY, "objects robbed"),
    Mutant("a hole is the end", ((ObjectReader, "_may_say_no", _holes_are_ends),), "objects robbed 3/3/2"),
    Mutant("a number that is taken is a fence", ((ObjectReader, "_fence_put", _taken_means_fenced),), "objects 1/1/1"),
    Mutant("a failed fence is a fence", ((ObjectReader, "_fence_put", _fails_means_fenced),), "objects 1/1/1"),
    Mutant("other bytes after an error", ((ObjectAppender, "_again", _more_frames_after_an_error),), "objects, busy"),
    Mutant("an unfenced no", ((ObjectReader, "_may_say_no", _unfenced_no),), "objects recovered"),
)
"""The rules of files on object stores, broken."""

OBJECT_CONSEQUENCES = tuple(
    replace(mutant, profile="objects collected, consequences" if "collect" in mutant.name else "objects, consequences")
    for mutant in OBJECT_MUTANTS
    if mutant.name
    in {
        "collection deletes fences",
        "the fence behind the listing's end",
        "412 taken as success",
        "objects counted, not the prefix",
        "no fence",
        "a number that is taken is a fence",
        "a failed fence is a fence",
        "other bytes after an error",
    }
)
"""Mutants that are caught by their consequences, without the checks of single answers that catch them first."""

_ON_OBJECTS = {
    "negative threshold off by one": "objects 3/3/2",
    "close at the LAC": "objects 3/3/2",
    "ensemble change without compare-and-set": "objects and spares",
    "acks during an ensemble change": "objects and spares",
    "keeping replaced acks": "objects and spares",
    "#2615: no floor": "objects 3/3/2",
    "blind close": "objects 3/3/2",
    "close without waiting for write-backs": "objects 3/3/2",
    "the dead writer's file counted": "objects 3/3/2",
    "a reader past the LAC": "objects 3/3/2",
    "seal above the LAC": "objects 3/3/2",
    "seal, trim and open without the incarnation's key": "objects collected",
    "trim before all is sealed": "objects collected",
    "a growing file is deleted": "objects collected",
    "what is unknown is lost": "objects 3/3/2",
    "a recovery that joins another": "objects recovered",
    "the writer takes any record for its own": "objects 3/3/2",
    "a recovery takes any record for its own": "objects 3/3/2",
}

ON_OBJECTS = tuple(
    replace(mutant, profile=_ON_OBJECTS[mutant.name]) for mutant in MUTANTS if mutant.name in _ON_OBJECTS
)
"""The mutants of rules that both kinds of files share, on object stores."""
assert len(ON_OBJECTS) == len(_ON_OBJECTS)
