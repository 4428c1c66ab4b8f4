"""The command line against a broker, and the commands that do the same on a root without one."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, Final

import pulsar
import pytest

from tests.kit.running_broker import RunningBroker

from .test_app import Run, ok, run  # noqa: F401  (a fixture)

AVRO = '{"type": "record", "name": "Click", "fields": [{"name": "url", "type": "string"}]}'


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with RunningBroker(tmp_path_factory.mktemp("cli") / "root") as running:
        yield running


@pytest.fixture(params=["root", "broker"])
def target(request: pytest.FixtureRequest, broker: RunningBroker) -> list[str]:
    """A target of commands: once the root itself, and once its broker."""
    return ["--root", str(broker.root)] if request.param == "root" else ["--url", broker.web_url]


def test_tenants_namespaces_and_topics(run: Run, target: list[str]) -> None:  # noqa: F811
    tenant = f"acme{target[0].strip('-')}"
    ok(run("tenants", "create", tenant, "--admin-role", "me", *target))
    ok(run("namespaces", "create", f"{tenant}/n", *target))
    assert tenant in json.loads(ok(run("tenants", "list", "--json", *target)))
    assert json.loads(ok(run("namespaces", "list", tenant, "--json", *target))) == [f"{tenant}/n"]
    assert "with 2 partitions" in ok(run("topics", "create", f"{tenant}/n/parts", "--partitions", 2, *target))
    assert "without partitions" in ok(run("topics", "create", f"{tenant}/n/one", *target))
    ok(run("topics", "add-partitions", f"{tenant}/n/parts", 3, *target))
    found = {each["name"]: each["partitions"] for each in json.loads(ok(run("topics", "list", "--json", *target)))}
    assert found[f"persistent://{tenant}/n/parts"] == 3
    assert found[f"persistent://{tenant}/n/one"] is None
    assert f"persistent://{tenant}/n/parts-partition-0" not in found
    ok(run("topics", "delete", f"{tenant}/n/parts", *target))
    done = run("tenants", "delete", tenant, *target)
    assert (done.code, f"{tenant}/n" in done.err) == (1, True)
    ok(run("tenants", "delete", tenant, "--force", *target))


@pytest.mark.parametrize("name", ["acme", "acme/n/x", "acme/", ""])
@pytest.mark.parametrize("command", ["create", "delete"])
def test_a_namespace_is_named_with_its_tenant(run: Run, target: list[str], command: str, name: str) -> None:  # noqa: F811
    done = run("namespaces", command, name, *target)
    assert (done.code, done.out, done.err.startswith("pulsarpy: Namespace ")) == (1, "", True)


def test_policies_and_schemas(run: Run, target: list[str], tmp_path: Path) -> None:  # noqa: F811
    topic = f"typed-{target[0].strip('-')}"
    ok(run("topics", "create", topic, *target))
    for of in ("public/default", topic):
        ok(run("policies", "set", of, "message_ttl", 3600, *target))
        ok(run("policies", "set", of, "schema_compatibility_strategy", "BACKWARD", *target))
        ok(run("policies", "set", of, "backlog_quota_age", '{"limitTime": 60}', *target))
        found = json.loads(ok(run("policies", "show", of, "--json", *target)))
        assert (found["message_ttl"], found["schema_compatibility_strategy"]) == (3600, "BACKWARD")
        assert found["backlog_quota_age"]["limitTime"] == 60
        for policy in found:
            ok(run("policies", "unset", of, policy, *target))
        assert json.loads(ok(run("policies", "show", of, "--json", *target))) == {}
    assert "not known" in run("policies", "set", topic, "no_such", 1, *target).err
    (tmp_path / "click.avsc").write_text(AVRO)
    ok(run("schemas", "register", topic, tmp_path / "click.avsc", "--type", "AVRO", *target))
    (version,) = json.loads(ok(run("schemas", "list", topic, "--json", *target)))
    assert (version["version"], version["type"]) == (0, "AVRO")


def test_messages_and_subscriptions(
    run: Run,  # noqa: F811
    broker: RunningBroker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PULSARPY_URL", broker.web_url)
    assert "Published 2 messages" in ok(run("produce", "greetings", "-m", "hello", "-m", "world", "--key", "k"))
    monkeypatch.setattr(sys, "stdin", io.StringIO("one\ntwo\nthree\n"))
    assert "Published 3 messages" in ok(run("produce", "greetings"))
    ok(run("subscriptions", "create", "greetings", "s", "--at", "earliest"))
    shown = json.loads(ok(run("topics", "stats", "greetings", "--json")))
    assert (shown["storedMessages"], shown["subscriptions"]["s"]["msgBacklog"]) == (5, 5)
    assert "Subscriptions" in ok(run("topics", "stats", "greetings"))
    peeked = json.loads(ok(run("peek", "greetings", "s", "-n", 100, "--json")))
    assert sum(each["messages"] for each in peeked) == 5
    ok(run("subscriptions", "skip", "greetings", "s", 4))
    assert "three" in ok(run("consume", "greetings", "-s", "s", "-n", 0, "--timeout", 2))
    ok(run("seek", "greetings", "s", "earliest"))
    received = ok(run("consume", "greetings", "-s", "s", "-n", 5, "--json")).splitlines()
    assert [json.loads(line)["value"] for line in received] == ["hello", "world", "one", "two", "three"]
    ok(run("subscriptions", "clear", "greetings", "s"))
    ok(run("subscriptions", "expire", "greetings", "s", 0))
    ok(run("topics", "unload", "greetings"))
    ok(run("topics", "trim", "greetings"))
    assert json.loads(ok(run("topics", "internal-stats", "greetings", "--json")))["numberOfEntries"] > 0
    assert "acknowledged up to" in ok(run("topics", "internal-stats", "greetings"))
    assert "Compacted" in ok(run("compact", "greetings"))
    for where in (["--url", broker.web_url], ["--root", str(broker.root)]):
        lines = ok(run("read", "greetings", "-n", 2, "--json", *where)).splitlines()
        assert [json.loads(line)["value"] for line in lines] == ["hello", "world"]
    assert "three" in ok(run("read", "greetings", "-n", 1, "--last", "--root", broker.root))
    ok(run("subscriptions", "delete", "greetings", "s", "--force"))
    assert "Terminated" in ok(run("topics", "terminate", "greetings"))


def test_messages_of_a_batch_have_their_own_ids_and_acknowledgements(run: Run, broker: RunningBroker) -> None:  # noqa: F811
    url, root = ["--url", broker.web_url], ["--root", str(broker.root)]
    ok(run("topics", "create", "batched", *url))
    ok(run("subscriptions", "create", "batched", "s", *url))
    ok(run("produce", "batched", "-m", "a", "-m", "b", "-m", "c", *url))

    def lines(text: str) -> list[tuple[str, str]]:
        return [(each["id"], each["value"]) for each in map(json.loads, text.splitlines())]

    by_root = lines(ok(run("read", "batched", "--json", *root)))
    assert len({id_ for id_, _ in by_root}) == 3
    assert lines(ok(run("read", "batched", "--json", *url))) == by_root
    assert lines(ok(run("consume", "batched", "-s", "s", "-n", 2, "--json", *url))) == by_root[:2]
    assert lines(ok(run("consume", "batched", "-s", "s", "-n", 0, "--timeout", 2, "--json", *url))) == by_root[2:]


def test_consuming_fewer_messages_than_asked_for_is_a_failure(run: Run, broker: RunningBroker) -> None:  # noqa: F811
    url = ["--url", broker.web_url]
    ok(run("topics", "create", "few", *url))
    ok(run("subscriptions", "create", "few", "s", "--at", "earliest", *url))
    ok(run("produce", "few", "-m", "a", "-m", "b", *url))
    done = run("consume", "few", "-s", "s", "-n", 5, "--timeout", 2, *url)
    assert (done.code, len(done.out.splitlines())) == (1, 2)
    assert done.err == "pulsarpy: 2 of 5 messages arrived from few, then none for 2 s: set --timeout to wait longer.\n"


def test_values_are_shown_by_their_schema_without_control_characters(run: Run, broker: RunningBroker) -> None:  # noqa: F811
    class Trip(pulsar.schema.Record):  # type: ignore[misc]
        city = pulsar.schema.String()
        fare = pulsar.schema.Double()

    client = pulsar.Client(broker.url)
    trips = client.create_producer("trips", schema=pulsar.schema.AvroSchema(Trip))
    trips.send(Trip(city="Paris\x1b[2J", fare=136.5))
    plain = client.create_producer("plain")
    plain.send(b"\x1b]0;title\x07 \xe2\x80\xae\xff\n", partition_key="\x1b[31m", properties={"k": "\x1b[0m"})
    client.close()
    ok(run("subscriptions", "create", "plain", "s", "--at", "earliest", "--url", broker.web_url))
    for where in (["--url", broker.web_url], ["--root", str(broker.root)]):
        assert ok(run("read", "trips", *where)).split("  ")[2] == '{"city": "Paris\\u001b[2J", "fare": 136.5}\n'
        line = ok(run("read", "plain", *where))
        assert line.rstrip("\n").isprintable()
        assert line.split("  ")[1:] == ["\\x1b[31m", "\\x1b]0;title\\x07 \\u202e\\xff\\n\n"]
        peeked = ok(run("peek", "plain", "s", *where))
        assert "title" in peeked
        assert peeked.replace("\n", "").isprintable()


def test_status_of_a_broker_shows_its_storage(run: Run, tmp_path: Path) -> None:  # noqa: F811
    with RunningBroker(tmp_path / "root") as broker:
        url = ["--url", broker.web_url]
        shown = ok(run("status", *url))
        assert "it stores and delivers messages" in shown
        for text in (str(tmp_path / "root" / "storage" / "1"), "Copies: 0 missing, 0 bad.", "Broker incarnations"):
            assert text in shown
        (tmp_path / "root" / "storage" / "1" / "pulsarpy-path.json").unlink()  # as on an empty disk
        shown = ok(run("status", *url))
        assert "not reachable" in shown
        assert "mount its disk there, or mark the path as lost" in shown
        by_url = json.loads(ok(run("status", "--json", *url)))["storage"]
        by_root = json.loads(ok(run("status", "--json", tmp_path / "root")))
        assert by_url["paths"][1]["condition"] in ("wiped", "unreachable")
        assert {name: by_root[name] for name in by_url} == by_url | {
            "paths": by_root["paths"],
            "incarnations": by_root["incarnations"],
        }


def test_reading_does_not_create_a_topic(run: Run, target: list[str]) -> None:  # noqa: F811
    done = run("read", "never-made", *target)
    assert (done.code, done.out, "does not exist" in done.err) == (1, "", True)
    assert "never-made" not in ok(run("topics", "list", *target))


def test_logs_of_pulsars_client_are_not_among_results(broker: RunningBroker) -> None:
    """It logs from C++, past what Python has for standard output."""
    program = str(Path(sys.executable).with_name("pulsarpy"))
    produce = [program, "produce", "no-tenant/n/t", "-m", "m", "--url", broker.url]
    done = subprocess.run(produce, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "TopicNotFound" in done.stderr
    assert done.stderr.count("\n") == 1


def test_subscriptions_are_the_same_from_both(run: Run, broker: RunningBroker) -> None:  # noqa: F811
    url, root = ["--url", broker.web_url], ["--root", str(broker.root)]
    for topic, partitions in (("listed", ()), ("listed-parts", ("--partitions", 2))):
        ok(run("topics", "create", topic, *partitions, *url))
        for _ in range(2):
            ok(run("produce", topic, "-m", "a", "-m", "b", *url))
        ok(run("subscriptions", "create", topic, "s", "--at", "earliest", *url))
    ok(run("subscriptions", "skip", "listed", "s", 1, *url))

    def listed(where: list[str]) -> list[object]:
        found = json.loads(ok(run("subscriptions", "list", "--json", *where)))
        return [each for each in found if "/listed" in each["topic"]]

    by_broker = listed(url)
    assert [(each["name"], each["backlog_messages"], len(each["cursors"])) for each in by_broker] == [
        ("s", 3, 1),
        ("s", 4, 2),
    ]
    ok(run("topics", "unload", "listed", *url))
    # Not the bytes: those of an entry in the journal become those of its keys and values when it is sealed.
    names = ("topic", "name", "type", "backlog_messages")
    assert [[each[name] for name in names] for each in listed(root)] == [
        [each[name] for name in names] for each in by_broker
    ]
    shown = json.loads(ok(run("status", "--json", *url)))
    assert {"name": "persistent://public/default/listed-parts", "partitions": 2} in shown["topics"]
    assert "stores and delivers messages" in ok(run("status", *url))
    ok(run("topics", "truncate", "listed", *url))
    assert [each["backlog_messages"] for each in listed(url)] == [0, 4]


def test_messages_and_backlogs_are_equal_from_root_and_broker(run: Run, broker: RunningBroker) -> None:  # noqa: F811
    url, root = ["--url", broker.web_url], ["--root", str(broker.root)]
    ok(run("topics", "create", "looked", *url))
    ok(run("subscriptions", "create", "looked", "s", "--at", "earliest", *url))
    for text in ("a", "b", "c"):
        ok(run("produce", "looked", "-m", text, "-m", f"{text}2", "--key", "k", *url))
    ok(run("subscriptions", "skip", "looked", "s", 2, *url))
    ok(run("topics", "unload", "looked", *url))

    def both(*arguments: object) -> list[Any]:
        return [json.loads(ok(run(*arguments, "--json", *where))) for where in (url, root)]

    by_broker, by_root = both("topics", "stats", "looked")
    names = ("storedMessages", "storageSize", "backlogSize")
    assert [by_root[name] for name in names] == [by_broker[name] for name in names]
    assert by_root["storedMessages"] == 6
    assert by_root["subscriptions"]["s"]["msgBacklog"] == by_broker["subscriptions"]["s"]["msgBacklog"] == 4
    by_broker, by_root = both("topics", "internal-stats", "looked")
    assert by_root["numberOfEntries"] == by_broker["numberOfEntries"] > 0
    assert by_root["cursors"]["s"]["markDeletePosition"] == by_broker["cursors"]["s"]["markDeletePosition"]
    by_broker, by_root = both("peek", "looked", "s", "-n", 100)
    assert by_root == by_broker
    assert sum(each["messages"] for each in by_root) == 4
    ok(run("subscriptions", "clear", "looked", "s", *url))
    assert json.loads(ok(run("peek", "looked", "s", "--json", *url))) == []
    for where in (url, root):
        for arguments in (["peek", "looked", "none"], ["peek", "absent", "s"], ["topics", "stats", "absent"]):
            done = run(*arguments, *where)
            assert (done.code, arguments[-1] in done.err or arguments[1] in done.err) == (1, True)


def test_changes_are_printed_as_json(run: Run, target: list[str]) -> None:  # noqa: F811
    of = f"json{target[0].strip('-')}"

    def said(*arguments: object) -> object:
        return json.loads(ok(run(*arguments, "--json", *target)))

    assert said("tenants", "create", of) == {"tenant": of}
    assert said("namespaces", "create", f"{of}/n") == {"namespace": f"{of}/n"}
    assert said("policies", "set", f"{of}/n", "message_ttl", 5) == {
        "of": f"{of}/n",
        "policy": "message_ttl",
        "value": 5,
    }
    assert said("policies", "unset", f"{of}/n", "message_ttl") == {"of": f"{of}/n", "policy": "message_ttl"}
    name = f"persistent://{of}/n/t"
    assert said("topics", "create", name, "--partitions", 1) == {"name": name, "partitions": 1}
    assert said("topics", "add-partitions", name, 2) == {"name": name, "partitions": 2}
    assert said("topics", "delete", name) == {"name": name}
    assert said("namespaces", "delete", f"{of}/n") == {"namespace": f"{of}/n"}
    assert said("tenants", "delete", of) == {"tenant": of}


def test_options_override_the_environment(
    run: Run,  # noqa: F811
    broker: RunningBroker,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """A command that may delete must not pick one of two targets."""
    for where in (["--root", str(tmp_path)], [str(tmp_path)]):
        done = run("tenants", "delete", "public", "--url", broker.web_url, "--force", *where)
        assert (done.code, "Both a root and --url" in done.err) == (1, True)
    done = run("topics", "delete", "t", "--root", str(tmp_path / "one"), str(tmp_path / "two"))
    assert (done.code, "Two roots are given" in done.err) == (1, True)
    monkeypatch.setenv("PULSARPY_ROOT", str(tmp_path / "none"))
    assert "public" in ok(run("tenants", "list", "--url", broker.web_url))
    done = run("topics", "list", "--url", f"{broker.web_url}/status.html?")
    assert (done.code, "is not a broker" in done.err, done.err.count("\n")) == (1, True, 1)


def test_measuring(run: Run, broker: RunningBroker) -> None:  # noqa: F811
    url = ["--url", broker.url, "--json"]
    produced = json.loads(ok(run("perf", "produce", "perf", "--seconds", 0.5, "--size", 100, "--rate", 200, *url)))
    assert 0 < produced["messages"] <= 101
    assert produced["failed"] == 0
    assert produced["latency_ms"]["p50"] <= produced["latency_ms"]["max"]
    consumed = json.loads(ok(run("perf", "consume", "perf", "-m", produced["messages"], "--earliest", *url)))
    assert consumed["messages"] == produced["messages"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tenants", "list"], "--url"),
        (["tenants", "list", "--url", "localhost:8080"], "not an HTTP URL"),
        (["tenants", "list", "--url", "http://localhost:1"], "does not answer"),
        (["topics", "stats", "t"], "Neither a root nor a broker"),
        (["topics", "unload", "t"], "needs a broker"),
        (["topics", "stats", "missing", "--url", "{url}"], "does not exist"),
        (["seek", "t", "s", "somewhere", "--url", "{url}"], "is not a position"),
        (["peek", "missing", "s", "--url", "{url}"], "does not exist"),
        (["produce", "t", "-m", "x", "--property", "x", "--url", "{url}"], "name=value"),
        (["read", "missing", "--root", "{root}"], "does not exist"),
        (["produce", "t", "-m", "x", "--url", "localhost:6650"], "is not the URL of a broker"),
        (["produce", "t", "-m", "x", "--url", "pulsar://localhost:none"], "is not the URL of a broker"),
        (["consume", "t", "-s", "s", "--url", "pulsar://localhost:1,localhost:2"], "does not answer"),
        (["read", "t", "--url", "http://localhost:1"], "does not answer"),
        (["perf", "consume", "t", "--url", "ftp://localhost"], "is not the URL of a broker"),
        (["schemas", "register", "t", "/no/such/file", "--url", "{url}"], "cannot be read"),
    ],
)
def test_failures_are_one_sentence(
    run: Run,  # noqa: F811
    broker: RunningBroker,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.delenv("PULSARPY_URL", raising=False)
    done = run(*(each.format(url=broker.web_url, root=broker.root) for each in arguments))
    assert (done.code, done.out) == (1, "")
    assert message in done.err
    assert done.err.startswith("pulsarpy: ")
    assert done.err.count("\n") == 1


class Pulsar(BaseHTTPRequestHandler):
    """The answers of a broker of Apache Pulsar 4 about a topic, which lack some of our fields and have others."""

    ANSWERS: Final = {
        "partitions": {"partitions": 0},
        "stats": {
            "msgRateIn": 1.5,
            "msgThroughputIn": 15.0,
            "storageSize": 2_000,
            "publishers": [
                {"accessMode": "Shared", "msgRateIn": 1.5, "producerId": 0, "producerName": "standalone-0-0"}
            ],
            "subscriptions": {"s": {"msgRateOut": 0.0, "msgBacklog": 7, "consumers": [], "type": "Exclusive"}},
        },
        "internalStats": {
            "numberOfEntries": 7,
            "ledgers": [{"ledgerId": 12, "entries": 7, "size": 2_000, "offloaded": False, "underReplicated": False}],
            "cursors": {"s": {"markDeletePosition": "12:-1", "state": "Open"}},
        },
    }

    def log_message(self, *_: object) -> None:
        """Log nothing: a test sees only the command's own output."""

    def do_GET(self) -> None:
        body = json.dumps(self.ANSWERS[self.path.rpartition("/")[2]]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class Elsewhere(Pulsar):
    """A broker of Apache Pulsar, among several, of which another one serves the topic."""

    def do_GET(self) -> None:
        if self.path.startswith("/owner"):
            super().do_GET()
            return
        self.send_response(307)
        self.send_header("Location", f"/owner{self.path}")
        self.send_header("Content-Length", "0")
        self.end_headers()


@pytest.mark.parametrize("handler", [Pulsar, Elsewhere])
def test_fields_that_a_pulsar_broker_lacks_are_shown_as_absent(
    run: Run,  # noqa: F811
    handler: type[Pulsar],
) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        try:
            shown = ok(run("topics", "stats", "t", "--url", url))
            assert all(
                each in shown for each in ("t: 2.0 kB", "In 1.5/s, 15 bytes/s; out -, -", "standalone-0-0", "Exclusive")
            )
            shown = ok(run("topics", "internal-stats", "t", "--url", url))
            assert all(each in shown for each in ("12:-1", "Sealed segments: none", "2.0 kB"))
        finally:
            server.shutdown()
