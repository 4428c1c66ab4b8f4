"""The habits of `pulsar-admin`: its command names, namespaces as arguments, durations and sizes with units."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main

from pulsar_on_spark.cli import operate
from pulsar_on_spark.cli.app import app
from pulsar_on_spark.cli.pulsar_names import ALIASES, HINTS, hint
from pulsar_on_spark.cli.units import duration_s, is_duration, size_bytes
from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.catalog.policies.policies import FIELDS
from tests.kit.running_broker import RunningBroker

from .test_app import Run, ok, run  # noqa: F401  (a fixture)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with RunningBroker(tmp_path_factory.mktemp("names") / "root") as running:
        yield running


@pytest.fixture(params=["root", "broker"])
def target(request: pytest.FixtureRequest, broker: RunningBroker) -> list[str]:
    return ["--root", str(broker.root)] if request.param == "root" else ["--url", broker.web_url]


def test_every_alias_names_an_existing_command() -> None:
    commands = typer.main.get_command(app).commands
    for name, ours in {**ALIASES, **HINTS}.items():
        first, *words = ours.split()
        assert first in commands, name
        group = getattr(commands[first], "commands", None)
        assert group is None or not words or words[0] in group, name
        first, *words = name.split()
        group = getattr(commands.get(first), "commands", {})
        assert first not in commands or words[0] not in group, f"{name} is a command of ours"


def test_names_of_policies_are_suggested() -> None:
    assert hint("namespaces get-message-ttl") == "policies show OF"
    assert hint("topics set-message-ttl") == "policies set OF message_ttl VALUE"
    assert hint("topics remove-retention") == "policies unset OF retention"
    assert {"message_ttl", "retention"} <= set(FIELDS)
    assert hint("topics nonsense") is None


def test_commands_of_pulsar_admin_run(run: Run, target: list[str]) -> None:  # noqa: F811
    topic = f"named{target[0].strip('-')}"
    ok(run("topics", "create", topic, "-p", 2, *target))
    assert "0 messages" in ok(run("topics", "partitioned-stats", topic, *target))
    assert "Ledgers of" in ok(run("topics", "partitioned-stats-internal", topic, *target))
    assert topic in ok(run("namespaces", "topics", "public/default", *target))
    ok(run("namespaces", "set-retention", "public/default", "-s", "10G", "-t", "7d", *target))
    ok(run("topics", "set-retention", topic, "--size", "512M", "--time", "-1", *target))
    expected = {"public/default": (10_080, 10_240), topic: (-1, 512)}
    for of, (minutes, megabytes) in expected.items():
        found = json.loads(ok(run("policies", "show", of, "--json", *target)))["retention"]
        assert (found["retentionTimeInMinutes"], found["retentionSizeInMB"]) == (minutes, megabytes)
    ok(run("policies", "unset", "public/default", "retention", *target))
    assert "Deleted" in ok(run("topics", "delete-partitioned-topic", topic, "-f", *target))


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["topics", "reset-cursor", "t", "-s", "s"], "`pulsarpy seek TOPIC SUBSCRIPTION 1h`"),
        (["topics", "create-partitioned-topic", "t"], "`pulsarpy topics create TOPIC --partitions N`"),
        (["namespaces", "set-message-ttl", "a/b"], "`pulsarpy policies set OF message_ttl VALUE`"),
        (["brokers", "healthcheck"], "`pulsarpy status --url URL`"),
        (["topics", "delet"], "Did you mean 'delete'?"),
        (["topicz"], "Did you mean 'topics'?"),
    ],
)
def test_an_unknown_command_suggests_the_right_one(run: Run, typed: list[str], said: str) -> None:  # noqa: F811
    done = run(*typed)
    shown = " ".join(done.err.replace("│", " ").split())
    assert (done.code, done.out) == (2, "")
    assert said in shown


def test_topics_of_a_namespace(run: Run, target: list[str]) -> None:  # noqa: F811
    tenant = f"of{target[0].strip('-')}"
    ok(run("tenants", "create", tenant, *target))
    for namespace in ("n", "m"):
        ok(run("namespaces", "create", f"{tenant}/{namespace}", *target))
        ok(run("topics", "create", f"{tenant}/{namespace}/t", *target))
    (found,) = json.loads(ok(run("topics", "list", f"{tenant}/n", "--json", *target)))
    assert found["name"] == f"persistent://{tenant}/n/t"
    done = run("topics", "list", f"{tenant}/absent", *target)
    assert (done.code, "Namespace" in done.err, "does not exist" in done.err) == (1, True, True)


def test_a_root_stays_a_root(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.chdir(tmp_path)
    Root.create(tmp_path / "data" / "root").create_topic("there")
    Root.create(tmp_path / "other").create_topic("here")
    assert "there" in ok(run("topics", "list", "data/root"))
    assert "Two roots are given" in run("topics", "list", "data/root", "--root", "other").err
    assert "there" in ok(run("topics", "list", "data/root", "--root", tmp_path / "data" / "root"))
    assert "here" in ok(run("topics", "list", "public/default", "other"))
    assert "here" in ok(run("topics", "list", "public/default", "--root", "other"))
    assert "data/typo does not exist" in run("topics", "list", "data/typo").err


def test_seek_accepts_a_relative_time(
    run: Run,  # noqa: F811
    broker: RunningBroker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url = ["--url", broker.web_url]
    ok(run("topics", "create", "sought", *url))
    ok(run("produce", "sought", "-m", "a", *url))
    ok(run("subscriptions", "create", "sought", "s", *url))

    def backlog() -> int:
        return int(json.loads(ok(run("topics", "stats", "sought", "--json", *url)))["subscriptions"]["s"]["msgBacklog"])

    assert backlog() == 0
    now = time.time()
    monkeypatch.setattr(operate.time, "time", lambda: now + 3600)
    assert "to 2h" in ok(run("seek", "sought", "s", "2h", *url))
    assert backlog() == 1
    ok(run("seek", "sought", "s", "30m", *url))
    assert backlog() == 0
    done = run("seek", "sought", "s", "1x", *url)
    assert (done.code, "1h for an hour ago" in done.err, "milliseconds since 1970" in done.err) == (1, True, True)


def test_units() -> None:
    assert [duration_s(each, "It") for each in ("30s", "1.5m", "2H", "1d", "1w")] == [30, 90, 7200, 86_400, 604_800]
    assert [size_bytes(each, "It") for each in ("5", "1k", "10M", "2GB", "1t")] == [5, 1024, 10 << 20, 2 << 30, 1 << 40]
    assert not is_duration("soon")
    for read, wrong in ((duration_s, "5"), (duration_s, "-1h"), (size_bytes, "10X"), (size_bytes, "M")):
        with pytest.raises(InvalidArgumentError, match="It is "):
            read(wrong, "It")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["set-retention", "public/default", "--time", "30s"], "less than a minute"),
        (["set-retention", "public/default", "--size", "9k"], "less than 1M"),
        (["set-retention", "public/default", "--size", "much"], "give a size such as"),
        (["set-retention", "public/default", "--size", "0"], "0 both, or neither"),
        (["set", "public/default", "retention", "3h"], "`pulsarpy policies set-retention`"),
    ],
)
def test_retention_refuses_wrong_values(run: Run, broker: RunningBroker, arguments: list[str], said: str) -> None:  # noqa: F811
    done = run("policies", *arguments, "--root", broker.root)
    assert (done.code, done.out, said in done.err, done.err.count("\n")) == (1, "", True, 1)
