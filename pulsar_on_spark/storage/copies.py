"""The rule by which all readers of stored files try the copies of a file in turn until one is good."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

from pulsar_on_spark.model.errors import StorageError
from pulsar_on_spark.model.ids import PathId
from pulsar_on_spark.storage.loss import CopyVerdict, in_words, summary, unknown_path, verdict_on
from pulsar_on_spark.storage.storage_path import StoragePath


class Closable(Protocol):
    """An open copy."""

    def close(self) -> None:
        """Close the copy."""


C = TypeVar("C", bound=Closable)
P = TypeVar("P", bound=StoragePath)
T = TypeVar("T")


class NoGoodCopyError(Exception):
    """No copy is good. The reader catches this and raises its own error, chosen by `CopiesInTurn.summary`."""


class CopiesInTurn(Generic[P, C]):
    """The copies of one file: the copy in use, the untried copies, and the problems of the copies that were given up.

    A copy that fails is closed and given up; the next copy is opened.

    Args:
        order: The storage paths of the copies, in the order in which to try them.
        paths: Returns the root's storage paths; called whenever a copy is opened or judged.
        open_copy: Opens the copy on a path; may raise StorageError or OSError.

    Attributes:
        problems: The error of each copy that was given up.
    """

    def __init__(
        self, order: Sequence[PathId], paths: Callable[[], Mapping[PathId, P]], open_copy: Callable[[P], C]
    ) -> None:
        self.problems: dict[PathId, Exception] = {}
        self._untried = list(order)
        self._paths = paths
        self._open_copy = open_copy
        self._in_use: tuple[PathId, C] | None = None

    def read(self, read_from: Callable[[C], T]) -> T:
        """Call `read_from` with the open copies in turn, and return its first result without StorageError or OSError.

        Raises:
            NoGoodCopyError: no copy is left.
        """
        while self._in_use is not None or self._untried:
            path_id = self._untried[0] if self._in_use is None else self._in_use[0]
            try:
                return read_from(self._opened())
            except (StorageError, OSError) as error:
                self.close()
                self.problems[path_id] = error
        raise NoGoodCopyError

    def verdict(self, path_id: PathId) -> CopyVerdict:
        """Return the verdict on the copy on a storage path, which was given up."""
        return verdict_on(self.problems[path_id], self._paths().get(path_id))

    def summary(self) -> CopyVerdict:
        """Return the verdict on the data, from all copies that were given up; see `loss.summary`."""
        return summary(map(self.verdict, self.problems))

    def in_words(self) -> str:
        """Return the problem of each copy that was given up, in sentences."""
        return in_words(self.problems)

    def close(self) -> None:
        """Close the copy in use."""
        if self._in_use is not None:
            self._in_use[1].close()
            self._in_use = None

    def _opened(self) -> C:
        if self._in_use is None:
            path_id = self._untried.pop(0)
            path = self._paths().get(path_id)
            if path is None:
                raise unknown_path(path_id)
            self._in_use = path_id, self._open_copy(path)
        return self._in_use[1]
