"""The command line as operators and scripts use it: results on standard output, failures as a sentence and code 1."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from typer.main import get_command

import pulsar_on_spark
from pulsar_on_spark import cli
from pulsar_on_spark.model.ids import EARLIEST
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.managed_ledger.subscription import subscriptions
from tests.kit import messages
from tests.kit.forked_pulsarpy import run_pulsarpy
from tests.kit.small_disks import SmallDisk


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


Run = Callable[..., Done]


_built_once = cache(get_command)
"""Typer inspects the functions of all commands at each call, which takes longer than most commands."""


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.delenv("PULSARPY_ROOT", raising=False)
    monkeypatch.setattr("typer.main.get_command", _built_once)

    def call(*arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["pulsarpy", *map(str, arguments)])
        code: object = 0
        try:
            cli.main()
        except SystemExit as end:
            code = end.code
        captured = capsys.readouterr()
        assert isinstance(code, int | None)
        assert "Traceback" not in captured.err
        return Done(code or 0, captured.out, captured.err)

    return call


def ok(done: Done) -> str:
    assert (done.code, done.err) == (0, "")
    return done.out


def test_read_says_that_spark_can_leave_lost_messages_out(run: Run, tmp_path: Path) -> None:
    root = Root.create(tmp_path / "root")
    root.create_topic("t")
    messages.write(root, "t", [b"1"])
    for path in root.current_storage_paths().values():
        for stored in path.segment_files(0):
            path.delete_segment(stored.name)
    done = run("read", "t", root.path)
    assert done.code == 1
    assert "read the topic in Spark, with option failOnDataLoss set to false" in done.err


def test_from_init_to_delete(run: Run, tmp_path: Path) -> None:
    root = tmp_path / "root"
    assert "quorum 3/3/2 on 3 storage paths" in ok(run("init", root))
    assert "with 4 partitions" in ok(run("topics", "create", "clicks", root, "--partitions", 4))
    assert "without partitions" in ok(run("topics", "create", "shop/orders/a", root))
    assert "has 6 partitions" in ok(run("topics", "add-partitions", "clicks", 6, root))
    listed = ok(run("topics", "list", root))
    assert "persistent://public/default/clicks" in listed
    assert "persistent://shop/orders/a" in listed
    opened = Root.open(root)
    messages.write(opened, "clicks", [b"12345"] * 1_500)
    parts = messages.target(opened, "clicks").parts
    subscriptions.create_subscriptions(opened.store, "delays", "Exclusive", dict.fromkeys(parts, EARLIEST))
    shown = ok(run("status", root))
    for text in ("writable", "1,500", "7.5 kB", "delays", "Exclusive", "Copies: 0 missing, 0 bad."):
        assert text in shown
    assert "3 copies verified as good" in ok(run("status", root, "--verify"))
    assert "delays" in ok(run("subscriptions", "list", root))
    assert "segments merged" in ok(run("maintain", root))
    assert "Deleted subscription 'delays'" in ok(run("subscriptions", "delete", "clicks", "delays", root))
    assert "Subscriptions: none" in ok(run("subscriptions", "list", root))
    assert "Deleted persistent://public/default/clicks" in ok(run("topics", "delete", "clicks", root))
    assert "clicks" not in ok(run("topics", "list", root))


def test_init_with_paths_and_quorum(run: Run, tmp_path: Path) -> None:
    disks = [argument for name in "abc" for argument in ("--storage-path", tmp_path / name)]
    made = json.loads(ok(run("init", tmp_path / "root", *disks, "--quorum", "3/2/1", "--json")))
    assert made["quorum"] == "3/2/1"
    status = json.loads(ok(run("status", tmp_path / "root", "--json")))
    assert [path["directory"] for path in status["paths"]] == [str(tmp_path / name) for name in "abc"]


def test_the_root_may_be_an_argument_an_option_or_a_variable(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ok(run("init", "--root", tmp_path / "root"))
    ok(run("topics", "create", "one", tmp_path / "root"))
    ok(run("topics", "create", "two", "--root", tmp_path / "root"))
    monkeypatch.setenv("PULSARPY_ROOT", str(tmp_path / "root"))
    ok(run("topics", "create", "three"))
    names = [topic["name"].rpartition("/")[2] for topic in json.loads(ok(run("topics", "list", "--json")))]
    assert names == ["one", "three", "two"]
    done = run("status", tmp_path / "other")
    assert (done.code, str(tmp_path / "other") in done.err) == (1, True)


def test_a_verification_that_finds_bad_copies_fails(run: Run, tmp_path: Path) -> None:
    root = Root.create(tmp_path / "root")
    root.create_topic("t")
    messages.write(root, "t", [b"v"] * 10)
    copy = next(root.path.rglob("*.arrow"))
    copy.write_bytes(copy.read_bytes()[:-1])
    assert run("status", root.path).code == 0
    done = run("status", root.path, "--verify")
    assert (done.code, "0 missing, 1 bad" in done.out, done.err) == (1, True, "")


def test_json_output_has_the_tables_data(run: Run, tmp_path: Path) -> None:
    root = Root.create(tmp_path / "root")
    root.create_topic("t", 2)
    messages.write(root, "t", [b"v"] * 10)
    parts = messages.target(root, "t").parts
    subscriptions.create_subscriptions(root.store, "sub", "Shared", dict.fromkeys(parts, EARLIEST))
    status = json.loads(ok(run("status", root.path, "--json", "--verify")))
    assert status["topics"][0]["messages"] == 10
    assert status["verified_copies"] == 3
    assert status["subscriptions"][0]["backlog_messages"] == 10
    (found,) = json.loads(ok(run("subscriptions", "list", root.path, "--json")))
    assert len(found["cursors"]) == 2
    done = json.loads(ok(run("maintain", root.path, "--json", "--abort-after", "90m")))
    assert done["problems"] == []


def test_messages_of_spark_are_shown_without_a_broker(run: Run, tmp_path: Path) -> None:
    root = Root.create(tmp_path / "root")
    for topic, partitions in (("t", None), ("parts", 2)):
        root.create_topic(topic, partitions)
        messages.write(root, topic, [b"one", b"two"])
        parts = messages.target(root, topic).parts
        subscriptions.create_subscriptions(root.store, "sub", "Shared", dict.fromkeys(parts, EARLIEST))
        assert "2 messages" in ok(run("topics", "stats", topic, root.path))
        shown = json.loads(ok(run("topics", "stats", topic, root.path, "--json")))
        assert (shown["storedMessages"], shown["subscriptions"]["sub"]["msgBacklog"]) == (2, 2)
        assert "has not acknowledged it" in ok(run("topics", "internal-stats", topic, root.path))
    peeked = json.loads(ok(run("peek", "t", "sub", root.path, "-n", 10, "--json")))
    assert sum(each["messages"] for each in peeked) == 2
    assert "one" in ok(run("peek", "t", "sub", root.path))
    done = run("peek", "parts", "sub", root.path)
    assert (done.code, "name one of them" in done.err) == (1, True)


def test_a_schema_from_a_file(run: Run, tmp_path: Path) -> None:
    ok(run("init", tmp_path / "root"))
    file = tmp_path / "click.avsc"
    file.write_text('{"type": "record", "name": "Click", "fields": [{"name": "url", "type": "string"}]}')
    ok(run("topics", "create", "t", tmp_path / "root", "--schema", file, "--schema-type", "avro"))
    assert json.loads(ok(run("status", tmp_path / "root", "--json")))["topics"][0]["schema"] == "AVRO"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["status", "{tmp}/nowhere"], "does not exist"),
        (["status"], "Neither a root nor a broker is given"),
        (["maintain"], "No root is given"),
        (["init", "{root}"], "is a root already"),
        (["init", "{tmp}/file"], "is a file"),
        (["init", "{tmp}/new", "--quorum", "2/3/1"], "Quorum 2/3/1 is not possible"),
        (["init", "{tmp}/new", "--quorum", "many"], "is not ENSEMBLE/WRITE/ACK"),
        (["init", "{tmp}/file/new"], "Not a directory"),
        (["topics", "create", "t", "{root}"], "exists already"),
        (["topics", "create", "n", "{root}", "--partitions", "0"], "0 partitions"),
        (["topics", "create", "a/b", "{root}"], "a/b"),
        (["topics", "create", "n", "{root}", "--schema", "{tmp}/missing"], "--schema"),
        (["topics", "create", "n", "{root}", "--schema", "{tmp}/file"], "Schema"),
        (["topics", "add-partitions", "t", "5", "{root}"], "has no partitions"),
        (["topics", "delete", "unknown", "{root}"], "does not exist"),
        (["subscriptions", "delete", "t", "unknown", "{root}"], "does not exist"),
        (["maintain", "{root}", "--abort-after", "soon"], "--abort-after"),
    ],
)
def test_a_failure_is_one_sentence_on_standard_error(
    run: Run, tmp_path: Path, arguments: Sequence[str], message: str
) -> None:
    root = Root.create(tmp_path / "root")
    root.create_topic("t")
    (tmp_path / "file").write_text("no root")
    done = run(*(each.format(tmp=tmp_path, root=root.path) for each in arguments))
    assert (done.code, done.out) == (1, "")
    assert message in done.err
    assert done.err.startswith("pulsarpy: ")
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    "command", [["produce", "t", "-m", "m"], ["consume", "t", "-s", "s"], ["read", "t"], ["perf", "consume", "t"]]
)
def test_commands_without_pulsars_client_name_its_installation(
    run: Run, monkeypatch: pytest.MonkeyPatch, command: Sequence[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pulsar", None)
    done = run(*command, "--url", "http://localhost:1")
    assert (done.code, "pip install 'pulsar-on-spark[client]'" in done.err) == (1, True)


def test_wrong_usage_has_its_own_exit_code(run: Run) -> None:
    assert run("topics", "create").code == 2
    assert run("nonsense").code == 2


def test_a_pass_with_problems_fails(run: Run, tmp_path: Path) -> None:
    root = Root.create(tmp_path / "root")
    root.create_topic("t")
    for value in (b"a", b"b"):
        messages.write(root, "t", [value])
    for number in (0, 1):
        (root.path / "storage" / str(number)).rename(tmp_path / f"away{number}")
    done = run("maintain", root.path)
    assert done.code == 1
    assert "pulsarpy: merge:" in done.err


def test_the_installed_program(tmp_path: Path) -> None:
    """It starts without Spark, prints its version and help, and completes for shells."""
    program = Path(sys.executable).with_name("pulsarpy")
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    assert version.stdout.startswith("pulsarpy 0.")
    helped = subprocess.run([program, "--help"], capture_output=True, text=True, check=True)
    for command in ("init", "topics", "subscriptions", "status", "maintain", "--install-completion"):
        assert command in helped.stdout
    environment = {**os.environ, "_PULSARPY_COMPLETE": "complete_bash", "COMP_WORDS": "pulsarpy to", "COMP_CWORD": "1"}
    completed = subprocess.run([program], env=environment, capture_output=True, text=True, check=False)
    assert "topics" in completed.stdout
    failed = subprocess.run([program, "status", tmp_path / "no"], capture_output=True, text=True, check=False)
    assert (failed.returncode, failed.stdout, failed.stderr.count("\n")) == (1, "", 1)
    # What a broker spawns imports the command line's package again, as its parent's main module.
    for imported, absent in (("cli.app", "pyspark"), ("cli.app", "fastapi"), ("cli", "fastapi"), ("cli", "deltalake")):
        light = f"import sys; import pulsar_on_spark.{imported}; print({absent!r} in sys.modules)"
        done = subprocess.run([sys.executable, "-c", light], capture_output=True, text=True, check=True)
        assert done.stdout == "False\n", (imported, absent)


def test_ctrl_c_during_the_start_prints_no_traceback() -> None:
    program = """
import signal, sys
import pulsar_on_spark.cli

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it

class CtrlC:
    def find_spec(self, name, *_):
        if name == "typer":
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, CtrlC())
pulsar_on_spark.cli.main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.root
def test_a_root_on_a_read_only_disk_is_one_sentence(tmp_path: Path) -> None:
    with SmallDisk(tmp_path / "disk", 32) as disk:
        root = disk.at / "root"
        Root.create(root).create_topic("t")
        disk.turn_read_only()
        for command in (
            ["topics", "create", "x", root],
            ["storage", "drain", 0, root],
            ["standalone", root, "--broker-port", 0, "--web-port", 0],
            ["init", disk.at / "other"],
            ["standalone", disk.at / "other", "--broker-port", 0, "--web-port", 0],
            ["standalone", "/proc/x", "--broker-port", 0, "--web-port", 0],
        ):
            done = run_pulsarpy(*command)
            assert (done.returncode, done.stderr.count("\n")) == (1, 1), (command, done.stderr)
            assert done.stderr.startswith("pulsarpy: ")
            for ugly in ("panicked", "Errno", "os error"):
                assert ugly not in done.stderr
            assert len(done.stderr) < 400
        assert "persistent://public/default/t" in run_pulsarpy("topics", "list", root).stdout


def test_the_packages_public_names_are_listed() -> None:
    assert set(pulsar_on_spark.__all__) <= set(dir(pulsar_on_spark))
