"""Writes from Spark to topics: tasks stage segment files, and the driver attaches the files in one commit."""

from __future__ import annotations

import hashlib
import logging
import sys
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pulsar_on_spark.datasource.checkpoint import checkpoints_of, sync_offsets
from pulsar_on_spark.datasource.options import WriteOptions
from pulsar_on_spark.datasource.rows import FramePlan, check_frame, to_segment_rows
from pulsar_on_spark.datasource.typed import TypedValues, schema_to_register, typed_as, typed_values
from pulsar_on_spark.datasource.user_errors import one_sentence
from pulsar_on_spark.datasource.worker_process import keep_modules
from pulsar_on_spark.datasource.write_targets import WriteTargets
from pulsar_on_spark.ledger.segments.segment_writer import FileNotWrittenError
from pulsar_on_spark.metadata import keys
from pulsar_on_spark.metadata.records import TopicRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.metadata.store import MetadataStore
from pulsar_on_spark.model.clock import current_ms
from pulsar_on_spark.model.errors import InvalidArgumentError, MetadataError, NotARootError, TopicNotFoundError
from pulsar_on_spark.model.ids import TopicId, WriteId
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.model.quorum import Quorum
from pulsar_on_spark.storage.root_place import RootPlace
from pulsar_on_spark.storage.storage_path import PathFailure, StoragePath
from pulsar_on_spark.topic.catalog import catalog, registry
from pulsar_on_spark.topic.catalog.policies.quorums import quorum_for_all, quorum_of
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.data_path.attach import TaskOutput, attach
from pulsar_on_spark.topic.data_path.routing import HashingScheme, split_rows
from pulsar_on_spark.topic.data_path.task_writer import TaskWriter, WriteTarget
from pulsar_on_spark.topic.data_path.transactions import Transaction, application_write, batch_of
from pulsar_on_spark.topic.managed_ledger.incarnation.dead_brokers import recover_before

log = logging.getLogger(__name__)

_CHECKPOINTS = "spark.sql.streaming.checkpointLocation"
"""Spark's setting for the folder of all checkpoints, which tasks get as a local property of the same name."""


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """A task's message to the driver about its staged files.

    Attributes:
        write_id: The id of the write.
        query_id: The id of the streaming query; None for a batch write.
        output: The staged files.
        checkpoints: Spark's setting for the folder of all checkpoints; None without the setting, or for a batch write.
    """

    write_id: WriteId
    query_id: str | None
    output: TaskOutput
    checkpoints: str | None = None


@dataclass(frozen=True)
class WritePlan:
    """The plan of a write, which the driver makes once for all tasks. Picklable.

    Attributes:
        write_id: The id of the write.
        root: The root's folder or URL.
        paths: The storage paths for new files.
        quorum: The numbers of copies of a file.
        scheme: The hash by which keys choose partitions.
        frame: The mapping of the frame's columns to messages.
        topic: The full name of the topic of all rows; None if each row names its topic.
        target: The partitions of `topic`; None if there is no `topic`, or if it does not exist and the tasks of a
            streaming query must create it.
        others: If each row names its topic, the existing topics; otherwise empty.
        typed: The schema and codec of typed values; None if values are bytes.
    """

    write_id: WriteId
    root: RootPlace
    paths: tuple[StoragePath, ...]
    quorum: Quorum
    scheme: HashingScheme
    frame: FramePlan
    topic: str | None
    target: WriteTarget | None
    others: WriteTargets
    typed: TypedValues | None


def plan_write(options: WriteOptions, schema: StructType, *, is_stream: bool = False) -> WritePlan:
    """Check the frame and the options, create the root and the topic if they are missing, and return the plan.

    The topic of a stream is not created here: it may have been deleted while the query was running, and only the tasks
    know the query.

    Raises:
        InvalidArgumentError: the frame or an option cannot be used; nothing was created.
        IncompatibleSchemaError: the frame's columns are not the fields of the topic's schema, or the schema to register
            is not compatible with the topic's schema; nothing was written.
        NotARootError: the path contains something other than a root.
        TopicTerminatedError: the topic is terminated.
    """
    topic = None if options.topic is None else TopicName.parse(options.topic)
    root = RootHandle.shared(options.root) if RootHandle.is_occupied(options.root) else None
    view = root.store.view() if root else None
    record = view.get(TopicRecord, topic.full) if view and topic else None
    if topic is not None and record is None:
        catalog.check_new_topic(topic, None)
    declared = registry.latest(view, record) if view and record else None
    registered = schema_to_register(options)
    typed = typed_values(options.typed, declared) if registered is None else typed_as(registered)
    value_type = None if typed is None else typed.schema.write_type
    frame = check_frame(schema, has_topic_option=topic is not None, value_type=value_type)
    if root is None:
        root = RootHandle.open_or_create(options.root)
    if topic is not None and record is None and not is_stream:
        catalog.create_topic(root.store, topic, None, exist_ok=True, schema=registered)
    if topic is not None and registered is not None:
        typed = typed_as(registered, registry.add_schema(root.store, topic, registered).version)
    if view is None or (topic is not None and record is None):
        view = root.store.view()
    return WritePlan(
        write_id=WriteId(uuid.uuid4().hex),
        root=root.place,
        paths=tuple(root.writable_paths(view)),
        quorum=quorum_for_all(view, root.quorum) if topic is None else quorum_of(view, topic, root.quorum),
        scheme=HashingScheme(options.hashing_scheme),
        frame=frame,
        topic=None if topic is None else topic.full,
        target=None if topic is None else _target_of(view, topic),
        others=WriteTargets.of(view, () if topic else catalog.topics(view)),
        typed=typed,
    )


def in_sink_runner() -> bool:
    """Return True if this process only commits a stream's micro-batches, so that its writer needs no plan for tasks.

    The process is recognized by the name of Spark's module. In a distribution of Spark with another name, the result is
    False, and the writer makes a plan that is not used.
    """
    return any("python_streaming_sink_runner" in argument for argument in sys.orig_argv)


def _target_of(view: View, topic: TopicName) -> WriteTarget | None:
    """Return the partitions of a topic, which must not be terminated; None if it does not exist."""
    record = view.get(TopicRecord, topic.full)
    if record is None:
        return None
    catalog.require_not_terminated(record)  # saves the work; the commit checks all topics again
    return WriteTarget(tuple(catalog.parts(view, record)))


class _TaskRun:
    """The work of one task, which writes its rows to staged files."""

    def __init__(self, plan: WritePlan, write_id: WriteId, task: int, query_id: str | None) -> None:
        self._plan = plan
        self._query_id = query_id
        self._targets: dict[str, WriteTarget] = {}
        if plan.topic is not None and plan.target is not None:
            self._targets[plan.topic] = plan.target
        self._rows = 0
        self._producer = f"spark-{write_id}"
        self._writer = TaskWriter(write_id, task, plan.paths, plan.quorum, plan.scheme)

    def write(self, batches: Iterator[pa.RecordBatch]) -> TaskOutput:
        try:
            if self._plan.topic is not None:
                self._target(self._plan.topic)  # creates it even if a task has no rows
            for batch in batches:
                self._add(batch)
            return self._writer.finish()
        except BaseException:
            self._writer.abort()
            raise

    def _add(self, batch: pa.RecordBatch) -> None:
        plan = self._plan
        typed = plan.typed
        converted = to_segment_rows(
            batch,
            plan.frame,
            producer_name=self._producer,
            first_sequence_id=self._rows,
            publish_time_ms=current_ms(),
            schema_version=None if typed is None else typed.schema_version,
            encode=None if typed is None else typed.encode,
        )
        self._rows += batch.num_rows
        if plan.topic is not None:
            self._writer.add(self._targets[plan.topic], converted.rows)
            return
        assert converted.topics is not None, "a frame without option topic has the column __topic"
        named = converted.topics.dictionary_encode()
        targets = [self._target(name) for name in named.dictionary.to_pylist()]
        for index, rows in split_rows(converted.rows, named.indices.to_numpy()):
            self._writer.add(targets[index], rows)

    def _target(self, given: str) -> WriteTarget:
        """Return the partitions of the topic with the name `given`, which is created if it does not exist.

        Raises:
            TopicNotFoundError: the topic was deleted, and the streaming query has committed a batch before. The query
                may have written to this topic, so it is not created again without its former partitions.
        """
        target = self._targets.get(given)
        if target is not None:
            return target
        name = TopicName.parse(given)
        if name.full not in self._targets and (planned := self._plan.others.get(name)) is not None:
            self._targets[name.full] = planned
        if name.full not in self._targets:
            store = RootHandle.shared(self._plan.root).store
            view = store.view()
            record = view.get(TopicRecord, name.full)
            if record is None:
                if view.last(TopicRecord, name.full) is not None and self._has_committed(store):
                    raise TopicNotFoundError(
                        f"Topic {name.full} was deleted under the streaming query that writes to it: create it again "
                        "with its former partitions and restart the query, or start it with a new checkpointLocation."
                    )
                record = catalog.create_topic(store, name, None, exist_ok=True)
                view = store.view()
            self._targets[name.full] = WriteTarget(tuple(catalog.parts(view, record)))
        # The target is also kept under the given name, which rows of every batch repeat.
        self._targets[given] = self._targets[name.full]
        return self._targets[given]

    def _has_committed(self, store: MetadataStore) -> bool:
        return self._query_id is not None and store.key_version(keys.query(self._query_id)) is not None


class _Writing:
    """The base of the batch writer and the stream writer. Spark pickles it, with its plan, for the tasks.

    Raises:
        InvalidArgumentError: the write's mode is to overwrite. Other errors are as in `plan_write`.
    """

    is_stream = False

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise InvalidArgumentError(
                "A topic can't be overwritten: use mode('append') for a batch and outputMode('append') for a stream; "
                "to start afresh, delete the topic first."
            )
        self._options = options
        self._plan = None if in_sink_runner() else plan_write(options, schema, is_stream=self.is_stream)

    @one_sentence
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the task's rows durably to staged files, and return the message about them (errors as `TaskWriter`)."""
        assert self._plan is not None, "tasks get the writer that the driver planned"
        context = TaskContext.get()
        query_id = context.getLocalProperty("sql.streaming.queryId") if context else None
        batch_id = context.getLocalProperty("streaming.sql.batchId") if context else None
        write_id = self._plan.write_id
        if query_id is not None:
            # One writer may serve several micro-batches, each of which is a separate write.
            write_id = WriteId(hashlib.md5(f"{write_id}/{query_id}/{batch_id}".encode()).hexdigest())
        task = context.partitionId() if context else 0
        try:
            output = _TaskRun(self._plan, write_id, task, query_id).write(iterator)
        except FileNotWrittenError as error:
            # The driver gets no message from this task.
            _mark_failed(self._plan.root, error.failures)
            raise
        keep_modules()
        checkpoints = context.getLocalProperty(_CHECKPOINTS) if context else None
        return Staged(write_id, query_id, output, checkpoints)

    def _attach(self, messages: list[WriterCommitMessage | None], transaction: Transaction | None) -> None:
        staged = [message for message in messages if isinstance(message, Staged)]
        if not staged:
            return
        root = RootHandle.shared(self._options.root)
        write_ids = {message.write_id for message in staged}
        assert len(write_ids) == 1, f"one write has one write id, found {write_ids}"
        if not attach(root.store, write_ids.pop(), [message.output for message in staged], transaction):
            log.info("Write %s was committed before, or is empty.", staged[0].write_id)
        _mark_failed(root.place, [failure for message in staged for failure in message.output.failures])
        files = [file for message in staged for file in message.output.files]
        recover_before(root, {TopicId(segment.topic_id) for file in files for segment in file.segments})


def _mark_failed(root: RootPlace, failures: Sequence[PathFailure]) -> None:
    """Mark the failed storage paths in this process and, if possible, in the metadata; log each of them."""
    for failure in {failure.path_id: failure for failure in failures}.values():
        log.warning(
            "Storage path %d failed and is read-only from now on: %s",
            failure.path_id,
            failure.reason,
            extra={"path": failure.path_id},
        )
    if not failures:
        return
    try:
        RootHandle.shared(root).mark_failed(failures)
    except (NotARootError, MetadataError, OSError) as error:
        # A task on a host without the paths and the root must raise its first error, not this one. And after a commit
        # an error would make Spark write the messages again.
        log.warning("The failed storage paths could not be marked as failed in the metadata: %s", error)


class PulsarBatchWriter(_Writing, DataSourceArrowWriter):
    """Writer of `df.write.format("pulsarpy")`, which writes all rows in one commit (errors as `plan_write`)."""

    @one_sentence
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Attach the files that the tasks staged, in one commit.

        With option `txnAppId`, a `txnVersion` that is not higher than the last one of the topic changes nothing.

        Raises:
            ReplayDiffersError: the same `txnVersion` was committed with another number of messages.
        """
        options = self._options
        transaction = None
        if options.txn_app_id is not None and options.txn_version is not None:
            topic = None if options.topic is None else TopicName.parse(options.topic)
            transaction = application_write(options.txn_app_id, options.txn_version, topic)
        self._attach(messages, transaction)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: the staged files belong to no topic, and `maintain` deletes them."""


class PulsarStreamWriter(_Writing, DataSourceStreamArrowWriter):
    """Writer of `df.writeStream.format("pulsarpy")`, which writes each micro-batch to its topics exactly once.

    Raises:
        InvalidArgumentError: option `txnAppId` or `registerSchema` is set. Other errors are as in `plan_write`.
    """

    is_stream = True

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        if options.txn_app_id is not None:
            raise InvalidArgumentError(
                "Options txnAppId and txnVersion belong to batch writes, while a stream identifies batches by query "
                "and number: leave them out."
            )
        if options.register_schema:
            raise InvalidArgumentError(
                "Option registerSchema belongs to batch writes: declare the schema by Root.declare_schema before the "
                "stream begins."
            )
        super().__init__(options, schema, overwrite)

    @one_sentence
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Attach the tasks' files in one commit under the query id and batch id.

        The replay of a committed batch changes nothing.

        Raises:
            ReplayDiffersError: this batch is committed already with another number of messages or from other offsets,
                or a later batch is.
            StorageError: the batch's offsets in a checkpoint on a local disk cannot be made durable, or differ from
                the offsets in a copy of the checkpoint.
        """
        origins = {(message.query_id, message.checkpoints) for message in messages if isinstance(message, Staged)}
        if not origins:
            return
        ((query_id, checkpoints),) = origins
        assert query_id is not None, "a streaming task knows its query"
        folders = checkpoints_of(query_id, self._options.checkpoint_location, checkpoints)
        offsets = sync_offsets(folders, batchId)
        self._attach(messages, batch_of(query_id, batchId, offsets))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: the staged files belong to no topic, and `maintain` deletes them."""
