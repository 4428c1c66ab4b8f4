"""SQL that makes persistent views of history tables, for sessions with Delta's JAR."""

from __future__ import annotations

import logging
import re
from collections import Counter
from pathlib import Path
from typing import Final

from pulsar_on_spark.history_table.places import find_table
from pulsar_on_spark.metadata.records import TopicRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.storage.root_place import RootPlace
from pulsar_on_spark.topic.catalog import catalog
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.catalog.tenants import require_namespace

_LOGGER: Final = logging.getLogger(__name__)


def view_statements(root: RootHandle, namespace: str, database: str | None = None) -> list[str]:
    """Return statements that make a view of each history table in a namespace, and the database for the views.

    Args:
        root: The root.
        namespace: `tenant/namespace`.
        database: The database; by default the namespace with an underscore for its slash.

    Raises:
        NamespaceNotFoundError: there is no such namespace.
        HistoryTableError: a table cannot be read.
    """
    view = root.store.view()
    require_namespace(view, namespace)
    into = quoted(database or namespace.replace("/", "_"))
    statements = [f"CREATE DATABASE IF NOT EXISTS {into}"]
    for topic, name in viewable(view, namespace):
        table = find_table(root, view, topic)
        if table is not None and table.exists():
            columns = ", ".join(quoted(column["name"]) for column in table.version().columns)
            made = f"CREATE OR REPLACE VIEW {into}.{quoted(name.local)}"
            statements.append(f"{made} AS SELECT {columns} FROM delta.{quoted(spark_uri(table.place))}")
    return statements


def viewable(view: View, namespace: str) -> list[tuple[TopicRecord, TopicName]]:
    """Return the topics of a namespace that can have views under their short names.

    For Spark, names of views that differ only in the case of letters are the same. Such topics are left out, with a
    line in the log, so that no view shows another topic.
    """
    named = [(topic, TopicName.parse(topic.name)) for topic in catalog.topics(view)]
    found = [(topic, name) for topic, name in named if name.namespace == namespace]
    counts = Counter(name.local.lower() for _, name in found)
    for _, name in found:
        if counts[name.local.lower()] > 1:
            _LOGGER.warning("Topic %s gets no view: another topic's name differs only in the case of letters.", name)
    return [(topic, name) for topic, name in found if counts[name.local.lower()] == 1]


def spark_uri(place: RootPlace) -> str:
    """Return a place as a URI for Spark, which looks in `fs.defaultFS` without a scheme. Hadoop decodes no escapes."""
    if isinstance(place, Path):
        return f"file://{place.absolute()}"
    return re.sub("^s3:", "s3a:", place.url)


def quoted(name: str) -> str:
    """Return a name as an identifier of Spark's SQL."""
    return "`" + name.replace("`", "``") + "`"
