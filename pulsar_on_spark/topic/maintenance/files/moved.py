"""Copies that were moved while a pass works by older metadata: by offloading, repair or a drain, beside the pass.

A copy that is missing or bad by an older record says nothing about the file. So a pass reads the file's record again
before it judges that a copy is bad or that a file is lost. If the record names other copies now, it looks at these.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from pulsar_on_spark.metadata.records import FileRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.errors import CopiesUnreachableError, CorruptSegmentError
from pulsar_on_spark.model.ids import PathId
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.maintenance.files.claims import require_held

T = TypeVar("T")

_MAX_MOVES: Final = 5
"""Maximum number of times that a file's copies are looked up again: passes that move files are minutes apart."""


def with_present_copies(root: RootHandle, file: FileRecord, read: Callable[[FileRecord], T]) -> T:
    """Return the result of reading a file. If no copy is good, read the copies that the file's present record names.

    Args:
        root: The root.
        file: The file's record, which may be old.
        read: Reads the copies that a record names.

    Raises:
        CorruptSegmentError: no copy is good, by the present record or the last one.
        CopiesUnreachableError: a copy may be good, on a path that cannot be reached, or that the root must not judge.
        MetadataError: the metadata cannot be read.
    """
    for _ in range(_MAX_MOVES):
        try:
            return read(file)
        except (CorruptSegmentError, CopiesUnreachableError):
            view = root.store.view()
            now = view.get(FileRecord, file.file_id)
            if now is None or now.names == file.names:
                require_held(root, view, file)
                raise
            file = now
    return read(file)


def is_named(root: RootHandle, file: FileRecord, path_id: PathId) -> bool:
    """Return True if the present metadata name a copy (see `names_copy`; raises `MetadataError`)."""
    return names_copy(root.store.view(), file, path_id)


def names_copy(view: View, file: FileRecord, path_id: PathId) -> bool:
    """Return True if the file is in use in a view, and its record there names the copy on a path that `file` names."""
    now = view.get(FileRecord, file.file_id)
    return now is not None and now.replaced_at is None and now.names.get(path_id) == file.names[path_id]
