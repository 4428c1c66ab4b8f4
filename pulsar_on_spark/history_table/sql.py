"""SQL that makes persistent views of history tables, for sessions with Delta's JAR."""

from __future__ import annotations

from pulsar_on_spark.history_table.table import HistoryTable, table_name
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.topic.catalog import catalog
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.catalog.tenants import require_namespace


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
    for topic in catalog.topics(view):
        name = TopicName.parse(topic.name)
        table = HistoryTable(root.place, table_name(topic.topic_id))
        if name.namespace == namespace and table.exists():
            columns = ", ".join(quoted(column["name"]) for column in table.version().columns)
            made = f"CREATE OR REPLACE VIEW {into}.{quoted(name.local)}"
            statements.append(f"{made} AS SELECT {columns} FROM delta.{quoted(str(table.folder))}")
    return statements


def quoted(name: str) -> str:
    """Return a name as an identifier of Spark's SQL."""
    return "`" + name.replace("`", "``") + "`"
