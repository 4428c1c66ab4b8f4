"""SQL that makes persistent views of history tables, for sessions with Delta's JAR."""

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
    """Statements that make a view of each history table in a namespace, and the database for the views.

    Attributes:
        statements: The statements, the one for the database first.
        problems: A sentence for each topic without a view, because its table cannot be read.
    """

    statements: list[str]
    problems: list[str]


def view_statements(root: RootHandle, namespace: str, database: str | None = None) -> ViewStatements:
    """Return the statements for a namespace; a table that cannot be read does not hold up the others.

    Args:
        root: The root.
        namespace: `tenant/namespace`.
        database: The database; by default the namespace with an underscore for its slash.

    Raises:
        NamespaceNotFoundError: there is no such namespace.
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
