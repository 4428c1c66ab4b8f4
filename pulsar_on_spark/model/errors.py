"""The error tree: every error is one sentence that names the thing, the place and the remedy."""

from __future__ import annotations


class PulsarpyError(Exception):
    """Base of every error that this project raises on purpose.

    Attributes:
        as_pulsar: Pulsar's own text for this error, where clients of its admin API compare it.
    """

    def __init__(self, *args: object, as_pulsar: str | None = None) -> None:
        super().__init__(*args)
        self.as_pulsar = as_pulsar


class InvalidArgumentError(PulsarpyError, ValueError):
    """An option, a name or a value that the caller gave is not acceptable."""


class NotARootError(PulsarpyError):
    """The path is missing, or is not a root, where a root is needed."""


class RootExistsError(PulsarpyError):
    """There is a root where one shall be made."""


class BrokerRunningError(PulsarpyError):
    """Another broker serves the root."""


class AccessDeniedError(PulsarpyError):
    """A client is not who it must be, or may not do what it asks."""


class FormatVersionError(PulsarpyError):
    """Stored data was written by a newer version of this project."""


class TopicNotFoundError(PulsarpyError):
    """No such topic in this root."""


class NamespaceNotFoundError(PulsarpyError):
    """No such tenant or namespace in this root."""


class NamespaceExistsError(PulsarpyError):
    """The tenant or namespace exists already, or still has something in it."""


class TopicExistsError(PulsarpyError):
    """The topic exists already, or exists in another form."""


class TopicTerminatedError(PulsarpyError):
    """The topic was terminated: it takes no messages any more, and can be read."""


class TopicBusyError(PulsarpyError):
    """The topic is in use by clients, and is not deleted under them."""


class TopicOwnedElsewhereError(PulsarpyError):
    """Another broker incarnation has the topic's ledger open."""


class SubscriptionNotFoundError(PulsarpyError):
    """No such subscription on this topic."""


class ConsumerBusyError(PulsarpyError):
    """The subscription is held by another consumer or by the other face (Pulsar's ConsumerBusy)."""


class ConsumerAssignError(PulsarpyError):
    """A Key_Shared consumer cannot have the hash ranges that it names (Pulsar's ConsumerAssignException)."""


class ConsumerFencedError(PulsarpyError):
    """This consumer lost its subscription to another, or its cursor was reset under it."""


class DataLossError(PulsarpyError):
    """Messages that the caller may rely on can no longer be read."""


class UnreadableMessageError(PulsarpyError):
    """A message is stored whole and cannot be made into rows: it is encrypted, or a chunk. Other clients read it."""


class StorageError(PulsarpyError):
    """Base of errors of storage paths and the files on them."""


class StoragePathError(StorageError):
    """A storage path is missing, not writable, or is not the path that the root knows."""


class WrongPathError(StoragePathError):
    """A directory is there that is not the storage path that the root knows: it is empty, or another path's."""


class NotEnoughCopiesError(StorageError):
    """Fewer than ack-quorum storage paths took the data: nothing was acknowledged."""


class CopiesUnreachableError(StorageError):
    """Stored data has no good copy that can be reached now. It is not known to be lost: try again later."""


class CorruptSegmentError(StorageError):
    """A copy of a segment file fails its checksum or is truncated."""


class SegmentGoneError(CorruptSegmentError):
    """No copy of a segment file is there any more: it may have been merged into another, so resolve the place again."""


class CorruptJournalError(StorageError):
    """Bytes of a copy of a journal file are not what a writer of the journal wrote."""


class JournalGoneError(CorruptJournalError):
    """No copy of a journal file is there any more: its entries were sealed, so resolve the place again."""


class JournalUnavailableError(StorageError):
    """The journal takes nothing now: it is full, closing, or short of paths. Nothing was written; try again later."""


class JournalFencedError(StorageError):
    """The journal's incarnation was taken over, or lost its record: this process must not serve any longer."""


class JournalUndecidedError(StorageError):
    """It cannot be told now what a journal has acknowledged: recovery would have to guess, and stops."""


class UnbuildableEntryError(PulsarpyError):
    """The stored rows of an entry are not all there, or cannot be made into an entry of at most maxMessageSize."""


class MetadataError(PulsarpyError):
    """The metadata tables cannot be read or written."""


class CorruptMetadataError(MetadataError):
    """A metadata file is damaged; nothing was changed."""


class CorruptCursorError(MetadataError):
    """The bytes of a cursor record or of its ack holes are damaged, or records that it needs are missing."""


class CommitConflictError(MetadataError):
    """A metadata commit lost every one of its bounded attempts to other writers."""


class ReplayDiffersError(PulsarpyError):
    """A transaction that is committed came again with other rows: nothing was written, and nothing was dropped."""


class WriteAbortedError(PulsarpyError):
    """The write was declared aborted by garbage collection before it was committed."""


class IncompatibleSchemaError(PulsarpyError):
    """The frame's columns, or a schema, do not fit the topic's schema."""


class BacklogQuotaExceededError(PulsarpyError):
    """A topic's subscriptions have more to read than its backlog quota allows: nothing was written."""


class SchemaNotFoundError(PulsarpyError):
    """The topic has no such schema."""


class ProtocolError(PulsarpyError):
    """A peer's bytes are not Pulsar's protocol: the connection cannot go on."""


class SparkSessionError(PulsarpyError):
    """A Spark session could not be started: Java or JARs are missing."""


def sentence_of(error: OSError) -> str:
    """The system's refusal as one sentence for users: the file, why, and what to check."""
    why = error.strerror or str(error) or type(error).__name__
    if error.filename is None:
        return f"The system refused ({why}): see that disks are mounted and have room."
    return f"{error.filename} cannot be used ({why}): see that it is mounted, and that this user may read and write it."
