"""The build of a history: it appends a topic's sealed messages to the topic's history table, exactly once.

Each partition is built separately, in steps that `plan` decides. A step reads the metadata and the table, writes the
data files, commits to the table as the next generation, and commits to the metadata. A build that dies leaves at most
data files that no log entry names, or a table that is one generation ahead of the metadata; then the next build commits
the metadata. Two builds at the same time only cause conflicts. If a message cannot be read, the messages before it are
appended, and the build fails.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from pulsar_on_spark.history_table.pieces import SKIP_LOST, Piece, all_columns, write_here
from pulsar_on_spark.history_table.places import Claims, find_table, is_begun, name_table, owner_of
from pulsar_on_spark.history_table.plan import (
    NOT_BUILT,
    Append,
    ContradictionError,
    Progress,
    UpToDate,
    grouped,
    next_step,
)
from pulsar_on_spark.history_table.recorded import end_of_messages, recorded_progress
from pulsar_on_spark.history_table.table import HistoryTable, TableVersion, moved_keys
from pulsar_on_spark.history_table.values import ValueColumns, placed, value_columns, with_columns
from pulsar_on_spark.metadata import keys
from pulsar_on_spark.metadata.log.chain import ConflictError
from pulsar_on_spark.metadata.log.entry import DataFile
from pulsar_on_spark.metadata.records import HistoryRecord, HistoryTableRecord, TopicRecord
from pulsar_on_spark.metadata.state import DurableView, View
from pulsar_on_spark.metadata.store import Change
from pulsar_on_spark.model.errors import HistoryTableError, PulsarpyError, SkippableError, TopicNotFoundError
from pulsar_on_spark.model.ids import EARLIEST, Position
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.topic.catalog import catalog, registry
from pulsar_on_spark.topic.catalog.catalog import TopicPart
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.catalog.writer_schemas import WriterSchemas
from pulsar_on_spark.topic.managed_ledger.chain import chain
from pulsar_on_spark.topic.managed_ledger.chain.steps import end_of_bytes

FILE_BYTES = 128 << 20
"""Approximate bytes of rows in one data file, which a build holds in memory."""
_ATTEMPTS = 20
"""Maximum number of attempts to commit a step."""
_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Built:
    """The result of building one topic or partition.

    Attributes:
        part: The topic or partition.
        to: The position before which its messages are in the table.
        rows: Number of messages that were added since this build began.
        bytes: Size in bytes of the files that were added since this build began.
    """

    part: TopicPart
    to: Position
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """Options of a build.

    Attributes:
        fail_on_data_loss: True if lost or unreadable messages are an error; False to leave them out permanently.
        write: The function that writes the data files of pieces, in this process or as Spark tasks.
        step_bytes: Key and value bytes that a build appends in one commit, or up to a segment more. A build that dies
            loses at most the work of one step.
        piece_bytes: Key and value bytes of a piece, or up to a segment more.
        limit_bytes: Key and value bytes after which the build ends, or up to a segment more; None to build everything.
        claims: The claims of storage paths of the housekeeping pass that runs the build; None to make claims for this
            build.
    """

    fail_on_data_loss: bool = True
    write: Callable[[list[Piece]], list[DataFile]] = write_here
    step_bytes: int = 1 << 30
    piece_bytes: int = 1 << 30
    limit_bytes: int | None = None
    claims: Claims | None = None


def build(root: RootHandle, name: TopicName, options: BuildOptions = BuildOptions()) -> list[Built]:
    """Append the sealed messages of a topic, or of one partition, that are not in its history table yet.

    All partitions are built, each up to a message that cannot be read, even if the build of another partition fails.
    The first error is raised at the end; further errors are logged.

    Args:
        root: The root.
        name: The topic or partition.
        options: The options.

    Returns:
        The result of each partition, or of the topic without partitions.

    Raises:
        TopicNotFoundError: the topic does not exist.
        HistoryTableError: the table cannot be read or written, or contradicts the metadata.
        InvalidArgumentError: a field of the topic's schema cannot be stored in Delta.
        DataLossError, UnreadableMessageError: a message cannot be read, and `fail_on_data_loss` is true.
        CopiesUnreachableError, MetadataError: the messages or the metadata cannot be read now.
    """
    view = root.store.view()
    topic = catalog.require_topic(view, name)
    owner, claims = owner_of(view, topic), options.claims or Claims(root)
    done, errors = [], []
    for part in catalog.parts(view, topic):
        try:
            done.append(_PartBuild(root, owner, part, options, claims).run())
        except (PulsarpyError, OSError) as error:
            errors.append(error)
    for further in errors[1:]:
        _LOGGER.warning("A partition of %s was not built: %s", name, further)
    if errors:
        raise errors[0]
    return done


class _PartBuild:
    """The build of one topic or partition."""

    def __init__(
        self, root: RootHandle, owner: TopicRecord, part: TopicPart, options: BuildOptions, claims: Claims
    ) -> None:
        self._root = root
        self._owner = owner
        self._part = part
        self._options = options
        self._claims = claims
        self._written: tuple[str, Append, pa.Schema, list[DataFile]] | None = None
        self._goal: Position | None = None
        self._unread: SkippableError | None = None

    def run(self) -> Built:
        """Append all messages that were sealed when the build began, and return the result (errors as `build`)."""
        before = recorded_progress(self._root.store.view(), self._part.topic_id)
        conflicts = 0
        while True:
            view = self._root.store.view(durable=True)
            try:
                if self._step(view):
                    break
                conflicts = 0
            except (ConflictError, HistoryTableError) as error:
                if isinstance(error, HistoryTableError) and not self._is_deleted(view):
                    raise
                conflicts += 1
                if conflicts == _ATTEMPTS:
                    raise HistoryTableError(
                        f"The history of {self._part.name} conflicted with other writers in {conflicts} attempts "
                        f"({error}): try again."
                    ) from error
                time.sleep(random.uniform(0, 0.01 * 2 ** min(conflicts, 6)))
        done = self._root.store.view()
        after, table = recorded_progress(done, self._part.topic_id), find_table(self._root, done, self._owner)
        if after.generation and table is not None:
            table.housekeep()
        if self._unread is not None:
            raise self._unread
        return Built(self._part, after.to, max(after.rows - before.rows, 0), max(after.bytes - before.bytes, 0))

    def _step(self, view: DurableView) -> bool:
        """Take one step, and return True if the build is done.

        Raises:
            ConflictError: another writer has changed the table or the metadata meanwhile; the step can be taken again.
        """
        topic_id = self._part.topic_id
        self._require_topic(view)
        main, sealed = recorded_progress(view, topic_id), self._end(view)
        has_nothing = main == NOT_BUILT and sealed <= chain.trimmed_before(view, topic_id)
        table = find_table(self._root, view, self._owner)
        if table is None:
            if not has_nothing:
                name_table(self._root, self._owner)
            return has_nothing  # without messages, no table is made
        self._claims.require(table.path)
        if not is_begun(view, catalog.parts(view, self._owner), table):
            if has_nothing:
                return True
            table.create(all_columns(placed(self._values(view), ())))
        version = table.version()
        try:
            step = next_step(main, version.progress(topic_id), chain.trimmed_before(view, topic_id), sealed)
        except ContradictionError as error:
            if recorded_progress(self._root.store.view(durable=True), topic_id) != main:
                raise ConflictError("another build has committed a step") from error
            raise HistoryTableError(
                f"The history table {table.place} contradicts the root's metadata ({error}): one of them was "
                "replaced; restore it, or delete the history with `pulsarpy history delete` and build it again."
            ) from error
        if isinstance(step, UpToDate):
            return True
        if isinstance(step, Append):
            try:
                progress = self._append(view, table, version, step)
            except SkippableError as error:
                self._stop_before(view, step, error)
                return False
        else:
            progress = step.progress
        self._record(table, progress)
        return False

    def _stop_before(self, view: View, step: Append, error: SkippableError) -> None:
        """Make the build end before the message that cannot be read; raise the error if the step begins with it."""
        topic_id = self._part.topic_id
        start = max(step.start, chain.trimmed_before(view, topic_id))
        end = EARLIEST if error.position is None else end_of_messages(view, topic_id, error.position)
        if not start < end < step.end:
            raise error
        self._goal, self._unread = end, error.with_traceback(None)  # its frames have rows in memory

    def _is_deleted(self, view: View) -> bool:
        """Return True if the metadata no longer name the history table that this view names."""
        before = view.get(HistoryTableRecord, self._owner.topic_id)
        return before != self._root.store.view(durable=True).get(HistoryTableRecord, self._owner.topic_id)

    def _require_topic(self, view: View) -> None:
        topic = view.get(TopicRecord, self._part.name)
        if topic is None or topic.topic_id != self._part.topic_id:
            raise TopicNotFoundError(
                f"Topic {self._part.name} was deleted while its history was built: no build is needed."
            )

    def _end(self, view: View) -> Position:
        """Return the position up to which the next step appends: at most `step_bytes`, and `limit_bytes` in all."""
        topic_id, sealed = self._part.topic_id, end_of_messages(view, self._part.topic_id)
        start = max(recorded_progress(view, topic_id).to, chain.trimmed_before(view, topic_id))
        if self._goal is None:
            limit = self._options.limit_bytes
            self._goal = sealed if limit is None else end_of_bytes(view, topic_id, start, sealed, limit)
        return end_of_bytes(view, topic_id, start, min(sealed, self._goal), self._options.step_bytes)

    def _append(self, view: DurableView, table: HistoryTable, version: TableVersion, step: Append) -> Progress:
        """Append the messages of a step to the table in one commit, and return the table's new progress.

        Raises:
            ConflictError: another commit came first, or a VACUUM has deleted the new files.
        """
        values = placed(self._values(view), version.columns)
        # Files that were written before a conflict are good, unless it has changed the content for them, or a VACUUM
        # has deleted them.
        wanted = table.name, step, values.columns
        if self._written is None or self._written[:3] != wanted or not table.has_files(self._written[3]):
            self._written = *wanted, self._files(view, table, step, values)
        files = self._written[3]
        progress = Progress(
            step.after.generation + 1,
            step.end,
            step.after.rows + sum(file.rows for file in files),
            step.after.bytes + sum(file.size for file in files),
        )
        columns = with_columns(values.columns, version.columns)
        table.commit(version, moved_keys(self._part.topic_id, progress), files, columns=columns)
        return progress

    def _values(self, view: View) -> ValueColumns:
        """Return the columns of the values, as the topic's latest schema determines them."""
        name = TopicName.parse(self._part.name)
        schema = registry.latest(view, catalog.require_topic(view, name))
        writers = WriterSchemas.of(self._root.place, registry.readable(view, name))
        return value_columns(schema, writers)

    def _files(self, view: DurableView, table: HistoryTable, step: Append, values: ValueColumns) -> list[DataFile]:
        """Write the data files of a step, and return them (raises `DataLossError` with `fail_on_data_loss`)."""
        part = self._part
        plan = chain.plan_range(view, part.name, part.topic_id, part.partition, step.start, step.end)
        options = self._options
        if options.fail_on_data_loss:
            plan.require_complete(f"to build its history without them, {SKIP_LOST}")
        for loss in plan.losses:
            _LOGGER.warning("Lost messages of %s are left out of its history: %s", part.name, loss.reason)
        paths = self._root.storage_paths(view)
        return options.write(
            [
                Piece(
                    self._root.place,
                    table.name,
                    table.path,
                    step.after.generation + 1,
                    tuple(slices),
                    paths,
                    values,
                    FILE_BYTES,
                    options.fail_on_data_loss,
                )
                for slices in grouped(plan.slices, lambda slice_: slice_.bytes, options.piece_bytes)
            ]
        )

    def _record(self, table: HistoryTable, progress: Progress) -> None:
        """Commit the table's progress to the metadata, unless another build has done so, or the topic was deleted.

        Raises:
            ConflictError: the history was deleted meanwhile.
            MetadataError: the metadata cannot be read or written.
        """
        part, owner = self._part, self._owner
        is_deleted = False

        def decide(view: View) -> Change | None:
            nonlocal is_deleted
            topic, named = view.get(TopicRecord, part.name), view.get(HistoryTableRecord, owner.topic_id)
            if topic is None or topic.topic_id != part.topic_id:
                return None
            is_deleted = named is None or named.table != table.name
            if is_deleted or recorded_progress(view, part.topic_id).generation >= progress.generation:
                return None
            record = HistoryRecord(
                topic_id=part.topic_id,
                generation=progress.generation,
                to_ledger=progress.to.ledger,
                to_entry=progress.to.entry,
                rows=progress.rows,
                bytes=progress.bytes,
            )
            return Change(puts=[record], keys={keys.topic(part.name): None, keys.topic(owner.name): None})

        self._root.store.commit(decide)
        if is_deleted:
            raise ConflictError("the history was deleted")
