"""`pulsarpy history`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

from pulsar_on_spark.cli.app import app
from pulsar_on_spark.metadata.records import HistoryTableRecord
from pulsar_on_spark.model.errors import InvalidArgumentError, NamespaceNotFoundError, TopicNotFoundError
from pulsar_on_spark.root import Root
from tests.kit import messages


@pytest.fixture
def root(memory_path: Path) -> Root:
    made = Root.create(memory_path / "root")
    made.create_topic("t")
    messages.write(made, "t", [b"1", b"2"])
    return made


def test_build_prints_its_result(root: Root) -> None:
    (first,) = json.loads(CliRunner().invoke(app, ["history", "build", "t", "--root", str(root.path), "--json"]).output)
    assert first["rows"] == 2
    again = CliRunner().invoke(app, ["history", "build", "t", str(root.path)])
    assert again.exit_code == 0
    assert "persistent://public/default/t" in again.output


def test_a_deleted_history_is_built_again(root: Root) -> None:
    CliRunner().invoke(app, ["history", "build", "t", str(root.path)])
    done = CliRunner().invoke(app, ["history", "delete", "t", str(root.path)])
    assert (done.exit_code, list((root.path / "history").iterdir())) == (0, [])
    assert root.build_history("t")[0].rows == 2
    root.create_topic("p", 2)
    part = CliRunner().invoke(app, ["history", "delete", "p-partition-0", str(root.path)])
    assert isinstance(part.exception, InvalidArgumentError)


def test_build_of_a_missing_topic(root: Root) -> None:
    done = CliRunner().invoke(app, ["history", "build", "other", str(root.path)])
    assert isinstance(done.exception, TopicNotFoundError)


def test_sql_prints_whole_statements(root: Root) -> None:
    CliRunner().invoke(app, ["history", "build", "t", str(root.path)])
    done = CliRunner().invoke(app, ["history", "sql", "public/default", str(root.path), "--database", "d`b"])
    create, view = done.output.splitlines()
    assert create == "CREATE DATABASE IF NOT EXISTS `d``b`;"
    assert view.startswith("CREATE OR REPLACE VIEW `d``b`.`t` AS SELECT `value`, `__partition`, ")
    assert view.endswith(f" FROM delta.`file://{next((root.path / 'history').iterdir())}`;")
    root.create_topic("T")  # for Spark, its view would be that of "t"
    assert CliRunner().invoke(app, ["history", "sql", "public/default", str(root.path)]).output.count("VIEW") == 0
    missing = CliRunner().invoke(app, ["history", "sql", "public/other", str(root.path)])
    assert isinstance(missing.exception, NamespaceNotFoundError)


def test_a_path_for_histories(root: Root) -> None:
    def run(*arguments: str) -> str:
        done = CliRunner().invoke(app, [*arguments, str(root.path)])
        assert done.exit_code == 0, done.output
        return done.stdout

    lake = str(root.path.with_name("lake"))
    added = json.loads(run("storage", "add", lake, "--role", "history", "--json"))
    run("history", "build", "t")
    (listed,) = [path for path in json.loads(run("storage", "list", "--json")) if path["role"] == "history"]
    assert listed["path_id"] == added["path_id"] == json.loads(run("history", "status", "--json"))[0]["path_id"]
    assert f"{lake}/history/" in run("history", "sql", "public/default")
    assert json.loads(run("usage", "--json"))["paths"][-1]["by_reason"].keys() == {"histories"}
    assert "histories" in run("usage")
    run("history", "delete", "t")
    run("storage", "drain", str(added["path_id"]))
    run("storage", "retire", str(added["path_id"]))


def test_sql_of_a_topic_whose_table_is_refused(root: Root) -> None:
    for name in ("t", "u"):
        root.create_topic(name, if_exists="ignore")
        messages.write(root, name, [b"1"])
        root.build_history(name)
    (record,) = root.store.view().all(HistoryTableRecord, root.topics()[0].topic_id)
    DeltaTable(root.path / record.table).delete("value = '1'")
    done = CliRunner().invoke(app, ["history", "sql", "public/default", str(root.path)])
    assert done.exit_code == 1
    assert ["`u`" in line for line in done.stdout.splitlines()] == [False, True]
    assert "Topic persistent://public/default/t gets no view: Another program" in " ".join(done.stderr.split())


def test_status_and_usage_know_histories(root: Root) -> None:
    def status() -> list[dict[str, object]]:
        found: list[dict[str, object]] = json.loads(
            CliRunner().invoke(app, ["history", "status", str(root.path), "--json"]).output
        )
        return found

    assert status() == []
    CliRunner().invoke(app, ["history", "build", "t", str(root.path)])
    messages.write(root, "t", [b"3"])
    (found,) = status()
    assert (found["rows"], found["waiting_rows"], found["is_enabled"]) == (2, 1, False)
    shown = CliRunner().invoke(app, ["history", "status", str(root.path)]).output
    assert "sealed, not built" in shown
    assert "│ no" in shown  # built by policy
    used = json.loads(CliRunner().invoke(app, ["usage", str(root.path), "--json"]).output)
    written = sum(file.stat().st_size for file in (root.path / "history").rglob("*") if file.is_file())
    assert used["history_bytes"] == used["topics"][0]["history_bytes"] == written
    assert "of histories" in CliRunner().invoke(app, ["usage", str(root.path)]).output
