"""The error tree: every error is one sentence that names the thing, the place and the remedy."""

from __future__ import annotations

from pulsar_on_spark.model.ids import Position


class PulsarpyError(Exception):
    """Base of every error that this project raises on purpose.

    Attributes:
        as_pulsar: Pulsar's own text for this error, if clients of the admin API compare the text; else None.
    """

    def __init__(self, *args: object, as_pulsar: str | None = None) -> None:
        super().__init__(*args)
        self.as_pulsar = as_pulsar


class InvalidArgumentError(PulsarpyError, ValueError):
    """An option, a name or a value that the caller gave is not acceptable."""


class NotARootError(PulsarpyError):
    """A root is needed, but the path is missing or is not a root."""


class RootExistsError(PulsarpyError):
    """A root already exists at the path where one is to be created."""


class BrokerRunningError(PulsarpyError):
    """Another broker serves the root."""


class AccessDeniedError(PulsarpyError):
    """The client is not authenticated, or not authorized for its request."""


class FormatVersionError(PulsarpyError):
    """Stored data was written by a newer version of this project."""


class TopicNotFoundError(PulsarpyError):
    """The root has no such topic."""


class NamespaceNotFoundError(PulsarpyError):
    """The root has no such tenant or namespace."""


class NamespaceExistsError(PulsarpyError):
    """The tenant or namespace cannot be created because it exists, or cannot be deleted because it is not empty."""


class TopicExistsError(PulsarpyError):
    """A topic of this name already exists."""


class TopicTerminatedError(PulsarpyError):
    """The topic was terminated, so it accepts no more messages, but can still be read."""


class TopicBusyError(PulsarpyError):
    """The topic cannot be deleted because clients use it, or the requested work on it is running already."""


class TopicOwnedElsewhereError(PulsarpyError):
    """Another run of a broker (incarnation) has the topic's ledger open."""


class SubscriptionNotFoundError(PulsarpyError):
    """The topic has no such subscription."""


class ConsumerBusyError(PulsarpyError):
    """Another consumer, of a broker or of Spark, owns the subscription (Pulsar's ConsumerBusy)."""


class ConsumerAssignError(PulsarpyError):
    """A Key_Shared consumer cannot have the hash ranges that it requests (Pulsar's ConsumerAssignException)."""


class ConsumerFencedError(PulsarpyError):
    """Another consumer took over this consumer's subscription, or its cursor was reset."""


class SkippableError(PulsarpyError):
    """Base of errors about messages that cannot be read, and that a caller may choose to skip.

    Attributes:
        position: The position of the first such message's entry; None if it is not known.
    """

    def __init__(self, *args: object, position: Position | None = None) -> None:
        super().__init__(*args)
        self.position = position


class DataLossError(SkippableError):
    """Messages that the caller may rely on can no longer be read."""


class UnreadableMessageError(SkippableError):
    """An intact message cannot become rows: it is encrypted, or one chunk of several. Pulsar clients can read it."""


class StorageError(PulsarpyError):
    """Base of errors of storage paths and the files on them."""


class StoragePathError(StorageError):
    """A storage path is missing, not writable, or not the path that the root's metadata name."""


class NoAccessError(StoragePathError):
    """This process lacks the credentials or permissions for a storage path, so the state of the path is unknown."""


class WrongPathError(StoragePathError):
    """A directory or store is not the storage path in the root's metadata: it is empty, or belongs to another path."""


class NotEnoughCopiesError(StorageError):
    """Fewer storage paths than the ack quorum stored the data, so nothing was acknowledged."""


class CopiesUnreachableError(StorageError):
    """No good copy of stored data can be reached now, but an unreachable copy may be good: try again later."""


class ObjectsUnreachableError(StorageError):
    """An object store gave no certain answer, so the request may have taken effect, may take effect later, or never."""


class ObjectsForbiddenError(ObjectsUnreachableError):
    """An object store refused the credentials of this process, or they do not permit the request."""


class ObjectsRefusedError(StorageError):
    """An object store refused a write: nothing was written, and only an operator can remove the cause."""


class UnsyncedFolderError(StorageError):
    """A disk could not make a folder durable, so nothing more is written to it until the operator has checked it.

    Attributes:
        is_own: True if this process met the failure; False if another process met it and left a mark in the folder.
    """

    is_own = False


class UnsuitableStoreError(StorageError):
    """An object store breaks a rule that the engine relies on."""


class CorruptSegmentError(StorageError):
    """A copy of a segment file fails its checksum or is truncated."""


class SegmentGoneError(CorruptSegmentError):
    """A copy of a segment file is gone, and no good copy was found. Look up whether the file was merged or moved."""


class CorruptJournalError(StorageError):
    """A copy of a journal file contains bytes that the journal's writer did not write."""


class JournalGoneError(CorruptJournalError):
    """A copy of a journal file is gone, and no good copy was found. Look up whether its entries were sealed."""


class JournalUnavailableError(StorageError):
    """The journal accepts no entries now: it is full, is closing or lacks paths. Nothing was written; try again."""


class JournalFencedError(StorageError):
    """The journal's incarnation was taken over, or its record is gone: this process must stop serving."""


class JournalUndecidedError(StorageError):
    """A recovery stopped, because it cannot determine now which entries a journal acknowledged."""


class UnbuildableEntryError(PulsarpyError):
    """An entry cannot be rebuilt: some of its stored rows are missing, or it would exceed maxMessageSize."""


class MetadataError(PulsarpyError):
    """The metadata tables cannot be read or written."""


class CorruptMetadataError(MetadataError):
    """A metadata file is damaged; nothing was changed."""


class HistoryTableError(PulsarpyError):
    """The history table of a topic cannot be read or written."""


class CorruptCursorError(MetadataError):
    """A cursor record or its ack holes are damaged, or records that it depends on are missing."""


class CommitConflictError(MetadataError):
    """A metadata commit conflicted with other writers in every allowed attempt."""


class ReplayDiffersError(PulsarpyError):
    """A committed transaction was replayed with different rows, so nothing was written."""


class WriteAbortedError(PulsarpyError):
    """Garbage collection aborted the write before it was committed."""


class IncompatibleSchemaError(PulsarpyError):
    """A DataFrame's columns, or a new schema, are incompatible with the topic's schema."""


class BacklogQuotaExceededError(PulsarpyError):
    """A topic's backlog exceeds its quota, so nothing was written."""


class SchemaNotFoundError(PulsarpyError):
    """The topic has no such schema."""


class ProtocolError(PulsarpyError):
    """A peer's bytes violate Pulsar's protocol, so the connection must be closed."""


class TlsHandshakeError(ProtocolError):
    """The client began a TLS handshake where none is expected."""


class SparkSessionError(PulsarpyError):
    """A Spark session could not be started: Java or JARs are missing."""


def sentence_of(error: OSError) -> str:
    """Describe an operating system's error in one sentence for users: the file, the reason and the remedy."""
    why = error.strerror or str(error) or type(error).__name__
    if error.filename is None:
        return f"The system refused ({why}): check that disks are mounted and have free space."
    return f"{error.filename} cannot be used ({why}): check that it is mounted and this user may read and write it."
