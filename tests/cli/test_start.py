"""A command loads only the modules that it needs, so that it starts at once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pulsar
import pytest

from pulsar_on_spark.root import Root
from tests.kit.running_broker import RunningBroker

HEAVY = {
    "asyncio",
    "cryptography",
    "deltalake",
    "fastapi",
    "fastavro",
    "google",
    "httpx",
    "jwt",
    "numpy",
    "obstore",
    "pandas",
    "pulsar",
    "pyarrow",
    "pyarrow.compute",
    "pydantic",
    "pyspark",
    "uvloop",
}
"""Modules that take over 20 ms of CPU to import."""
ROOT = {"numpy", "pyarrow", "pydantic"}
"""Modules that every command on a root loads: its metadata are Parquet files with Pydantic records."""
TOKEN = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhIn0."
PROGRAM = """
import sys
sys.modules |= dict.fromkeys({absent!r})
from pulsar_on_spark import cli
sys.argv = ["pulsarpy", *sys.argv[1:]]
try:
    cli.main()
finally:
    sys.stderr.write(" ".join(["\\nloaded", *sys.modules]))
"""


def started(*arguments: str, absent: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    program = PROGRAM.format(absent=absent)
    return subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False)


def loaded(*arguments: str) -> set[str]:
    return HEAVY & set(started(*arguments).stderr.rpartition("\nloaded ")[2].split())


@pytest.mark.parametrize(
    "arguments",
    [
        ["--version"],
        ["--help"],
        ["topics", "--help"],
        ["consume", "--help"],
        ["standalone", "--help"],
        ["storage", "--help"],
        ["topics", "nonsense"],
        ["tokens", "show", TOKEN],
    ],
)
def test_help_and_tokens_load_no_heavy_module(arguments: list[str]) -> None:
    assert loaded(*arguments) == set()


@pytest.fixture(scope="module")
def broker_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with RunningBroker(tmp_path_factory.mktemp("start") / "root") as broker:
        with closing(pulsar.Client(broker.url)) as client:
            client.subscribe("t", "s", initial_position=pulsar.InitialPosition.Earliest)
        yield broker.web_url


@pytest.mark.parametrize(
    "arguments",
    [
        ["tenants", "list"],
        ["topics", "list", "public/default", "--json"],
        ["topics", "stats", "t"],
        ["subscriptions", "list"],
        ["permissions", "list", "public/default"],
        ["seek", "t", "s", "1h"],
    ],
)
def test_a_command_through_a_broker_loads_no_heavy_module(broker_url: str, arguments: list[str]) -> None:
    assert loaded(*arguments, "--url", broker_url) == set()


def test_messages_through_a_broker_load_no_storage(broker_url: str) -> None:
    """Pulsar's client loads fastavro and protobuf."""
    assert loaded("produce", "t", "-m", "x", "--url", broker_url) == {"fastavro", "google", "pulsar"}
    assert loaded("consume", "t", "-s", "s", "--url", broker_url) == {"fastavro", "google", "pulsar"}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(Root.create(tmp_path_factory.mktemp("start") / "root").path)


@pytest.mark.parametrize("of", ["tenants", "topics"])
def test_a_list_of_a_root_loads_what_reads_its_metadata(root: str, of: str) -> None:
    assert loaded(of, "list", "--root", root) == ROOT


@pytest.mark.parametrize("arguments", [["subscriptions", "list"], ["status"]])
def test_backlogs_of_a_root_need_arrows_functions_but_neither_spark_nor_a_client(
    root: str, arguments: list[str]
) -> None:
    assert loaded(*arguments, "--root", root) == ROOT | {"pyarrow.compute"}


OF_OTHER_EXTRAS = ("bcrypt", "cryptography", "fastapi", "h11", "hdrh", "httpx", "jwt", "obstore", "passlib")
OF_OTHER_EXTRAS += ("prometheus_client", "pulsar", "starlette", "uvicorn", "uvloop")


@pytest.mark.parametrize(
    "arguments",
    [
        ["topics", "stats", "t"],
        *(
            pytest.param(arguments, marks=pytest.mark.long)
            for arguments in (
                ["topics", "internal-stats", "t"],
                ["read", "t"],
                ["schemas", "list", "t"],
                ["policies", "show", "t"],
                ["usage"],
                ["maintain"],
                ["storage", "check"],
            )
        ),
    ],
)
def test_commands_on_a_root_need_the_extra_cli_only(tmp_path: Path, arguments: list[str]) -> None:
    made = Root.create(tmp_path / "root")
    made.create_topic("t")
    done = started(*arguments, "--root", str(made.path), absent=OF_OTHER_EXTRAS)
    assert (done.returncode, "not installed" in done.stderr) == (0, False)
