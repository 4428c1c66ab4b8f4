"""SQL that creates persistent views of history tables, for sessions with Delta's JAR."""

from __future__ import annotations

import logging
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pulsar_on_spark.history_table.places import find_table
from pulsar_on_spark.metadata.records import TopicRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.errors import HistoryTableError
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.storage.root_place import RootPlace
from pulsar_on_spark.topic.catalog import catalog
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.catalog.tenants import require_namespace

_LOGGER: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ViewStatements:
    """Statements that create a database, and in it a view of each history table of a namespace.

    Attributes:
        statements: The statements; the first one creates the database.
        problems: A sentence for each topic that gets no view because its table cannot be read.
    """

    statements: list[str]
    problems: list[str]


def view_statements(root: RootHandle, namespace: str, database: str | None = None) -> ViewStatements:
    """Return the statements for a namespace. A table that cannot be read is only named in `problems`.

    Args:
        root: The root.
        namespace: The namespace, as `tenant/namespace`.
        database: The database for the views; None for the namespace with an underscore for its slash.

    Raises:
        NamespaceNotFoundError: the namespace does not exist.
    """
    view = root.store.view()
    require_namespace(view, namespace)
    into = quoted(database or namespace.replace("/", "_"))
    made = ViewStatements([f"CREATE DATABASE IF NOT EXISTS {into}"], [])
    for topic, name in viewable(view, namespace):
        try:
            table = find_table(root, view, topic)
            if table is not None and table.exists():
                columns = ", ".join(quoted(column["name"]) for column in table.version().columns)
                select = f"SELECT {columns} FROM delta.{quoted(spark_uri(table.place))}"
                made.statements.append(f"CREATE OR REPLACE VIEW {into}.{quoted(name.local)} AS {select}")
        except HistoryTableError as error:
            made.problems.append(f"Topic {topic.name} gets no view: {error}")
    return made


def viewable(view: View, namespace: str) -> list[tuple[TopicRecord, TopicName]]:
    """Return the topics of a namespace that can have views under their local names.

    Spark ignores case in the names of views. Topics whose names differ only in upper and lower case are left out, with
    a warning in the log, so that no view shows the wrong topic.
    """
    named = [(topic, TopicName.parse(topic.name)) for topic in catalog.topics(view)]
    found = [(topic, name) for topic, name in named if name.namespace == namespace]
    counts = Counter(name.local.lower() for _, name in found)
    for _, name in found:
        if counts[name.local.lower()] > 1:
            _LOGGER.warning("Topic %s gets no view: another topic's name differs only in upper and lower case.", name)
    return [(topic, name) for topic, name in found if counts[name.local.lower()] == 1]


def spark_uri(place: RootPlace) -> str:
    """Return a folder or URL as a URI for Spark, with a scheme, because Spark would add the scheme of `fs.defaultFS`.

    Characters are not percent-encoded, because Hadoop would not decode them.
    """
    if isinstance(place, Path):
        return f"file://{place.absolute()}"
    return re.sub("^s3:", "s3a:", place.url)


def quoted(name: str) -> str:
    """Return a name as a quoted identifier of Spark's SQL."""
    return "`" + name.replace("`", "``") + "`"
