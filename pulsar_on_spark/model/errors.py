"""The error tree: every error is one sentence that names the thing, the place and the remedy."""

from __future__ import annotations


class PulsarpyError(Exception):
    """Base of every error that this project raises on purpose."""


class InvalidArgumentError(PulsarpyError, ValueError):
    """An option, a name or a value that the caller gave is not acceptable."""


class NotARootError(PulsarpyError):
    """The path is missing, or is not a root, where a root is needed."""


class RootExistsError(PulsarpyError):
    """There is a root where one shall be made."""


class FormatVersionError(PulsarpyError):
    """Stored data was written by a newer version of this project."""


class TopicNotFoundError(PulsarpyError):
    """No such topic in this root."""


class TopicExistsError(PulsarpyError):
    """The topic exists already, or exists in another form."""


class SubscriptionNotFoundError(PulsarpyError):
    """No such subscription on this topic."""


class ConsumerBusyError(PulsarpyError):
    """The subscription is held by another consumer or by the other face (Pulsar's ConsumerBusy)."""


class ConsumerFencedError(PulsarpyError):
    """This consumer lost its subscription to another, or its cursor was reset under it."""


class DataLossError(PulsarpyError):
    """Messages that the caller may rely on can no longer be read."""


class StorageError(PulsarpyError):
    """Base of errors of storage paths and the files on them."""


class StoragePathError(StorageError):
    """A storage path is missing, not writable, or is not the path that the root knows."""


class NotEnoughCopiesError(StorageError):
    """Fewer than ack-quorum storage paths took the data: nothing was acknowledged."""


class CorruptSegmentError(StorageError):
    """A copy of a segment file fails its checksum or is truncated."""


class SegmentGoneError(CorruptSegmentError):
    """No copy of a segment file is there any more: it may have been merged into another, so resolve the place again."""


class MetadataError(PulsarpyError):
    """The metadata tables cannot be read or written."""


class CommitConflictError(MetadataError):
    """A metadata commit lost every one of its bounded attempts to other writers."""


class WriteAbortedError(PulsarpyError):
    """The write was declared aborted by garbage collection before it was committed."""


class IncompatibleSchemaError(PulsarpyError):
    """The frame's columns, or a schema, do not fit the topic's schema."""


class SparkSessionError(PulsarpyError):
    """A Spark session could not be started: Java or JARs are missing."""
