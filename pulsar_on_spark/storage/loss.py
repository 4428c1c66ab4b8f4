"""The one rule that separates lost data from unreachable data. Pure: it judges the errors of copies.

a copy's error                                                              verdict
--------------------------------------------------------------------------  -----------
its bytes differ from the written ones, or some are missing                 DAMAGED
it does not exist, on a storage path that is well                           GONE
it cannot be reached, on a path that an operator gave up as lost            GONE
anything else: path away or wiped, another disk, EMFILE, EIO, EACCES ...    UNREACHABLE

the copies' verdicts                 conclusion
-----------------------------------  ------------------------------------------------------------
one is UNREACHABLE                   perhaps not lost: the error says to try again later
else one is GONE                     lost, unless the metadata now name another file for the data
all are DAMAGED, or there is none    lost
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Final

from pulsar_on_spark.model.errors import (
    CopiesUnreachableError,
    CorruptJournalError,
    CorruptSegmentError,
    JournalGoneError,
    SegmentGoneError,
    StoragePathError,
)
from pulsar_on_spark.model.ids import PathId
from pulsar_on_spark.storage.storage_path import StoragePath

LOOK_AGAIN: Final = (SegmentGoneError, JournalGoneError, CopiesUnreachableError)
"""Read errors after which a reader looks up the data in the metadata again: the data may be merged, sealed or moved."""


class CopyVerdict(Enum):
    """The meaning of a reader's error for a copy."""

    DAMAGED = "it is there and bad"
    GONE = "it is not there"
    UNREACHABLE = "it cannot be reached now"


def verdict_on(cause: Exception, path: StoragePath | None) -> CopyVerdict:
    """Return the verdict on a copy that could not be read.

    Args:
        cause: The reader's error. A `FileNotFoundError` must come from a path whose identity was checked.
        path: The copy's storage path; None if the root has no path with this id.
    """
    if isinstance(cause, (SegmentGoneError, JournalGoneError, FileNotFoundError)):
        return CopyVerdict.GONE
    if isinstance(cause, (CorruptSegmentError, CorruptJournalError)):
        return CopyVerdict.DAMAGED
    is_given_up = path is not None and path.is_given_up
    return CopyVerdict.GONE if is_given_up else CopyVerdict.UNREACHABLE


def summary(verdicts: Iterable[CopyVerdict]) -> CopyVerdict:
    """Return the verdict on data from the verdicts on all copies: UNREACHABLE if any is, else GONE if any is.

    Otherwise the verdict is DAMAGED. DAMAGED data are lost, UNREACHABLE data may be good. GONE data are lost unless the
    metadata now name another file for them.
    """
    distinct = set(verdicts)
    for verdict in (CopyVerdict.UNREACHABLE, CopyVerdict.GONE):
        if verdict in distinct:
            return verdict
    return CopyVerdict.DAMAGED


def in_words(causes: Mapping[PathId, Exception]) -> str:
    """Return the problem of each copy, by the id of its storage path, in sentences."""
    return " ".join(f"[path {path_id}] {cause}" for path_id, cause in causes.items()) or "It has no copies."


def unknown_path(path_id: PathId) -> StoragePathError:
    """Return the error for a copy on a storage path that the root's metadata do not have."""
    return StoragePathError(f"Storage path {path_id} is not in the root's metadata: see `pulsarpy storage list`.")


def unreachable(what: str, causes: str) -> CopiesUnreachableError:
    """Return the error for data of which no copy is good and at least one cannot be reached.

    Args:
        what: The data, as the subject of a sentence, in the singular or plural.
        causes: The problem of each copy, in sentences.
    """
    return CopiesUnreachableError(
        f"{what} cannot be read now, though a good copy may exist: bring the storage paths of the copies back, or mark "
        f"with `pulsarpy storage lost` those that are gone for good. {causes}"
    )
