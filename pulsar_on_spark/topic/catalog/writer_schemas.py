"""The Avro schemas that messages were written with, by topic and version.

All of them are read as the latest version.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from pulsar_on_spark.metadata.records import SchemaRecord
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.storage.root_place import RootPlace
from pulsar_on_spark.topic.catalog import registry
from pulsar_on_spark.topic.catalog.root_handle import RootHandle


@dataclass(frozen=True)
class WriterSchemas:
    """The versions of some topics' schemas. Picklable: Spark sends it to tasks.

    Attributes:
        root: The root's path, where tasks look up versions that were registered after the read began.
        known: Type and text by topic (not by partition) and version bytes; None for a missing version.
    """

    root: RootPlace
    known: dict[tuple[str, bytes], tuple[str, str] | None] = field(default_factory=dict)

    @classmethod
    def of(cls, root: RootPlace, versions: Iterable[SchemaRecord]) -> WriterSchemas:
        """Collect the versions that exist when the read begins."""
        return cls(
            root, {(record.name, record.version.to_bytes(8, "big")): (record.type, record.data) for record in versions}
        )

    def find(self, topic: str, version: bytes) -> tuple[str, str] | None:
        """Return the type and the text of a version; None if it does not exist.

        Args:
            topic: Full name of a topic or of a partition.
            version: The version bytes of a message.

        Raises:
            TopicNotFoundError, MetadataError: the topic is gone, or the metadata cannot be read.
        """
        name = TopicName.parse(topic)
        for owner in (name.full, name.partitioned_base.full):
            if (owner, version) in self.known:
                return self.known[owner, version]
        record = None
        if len(version) == 8:
            record = registry.find(RootHandle.shared(self.root).store.view(), name, int.from_bytes(version, "big"))
        type_and_text = None if record is None else (record.type, record.data)
        self.known[name.full, version] = type_and_text
        return type_and_text
