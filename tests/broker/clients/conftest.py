from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path

import httpx
import pulsar
import pytest

from tests.kit.few_cas import one_trusted_ca  # noqa: F401
from tests.kit.running_broker import RunningBroker

WAIT_MS = 60_000
"""The longest that a message takes on a busy machine."""
_numbers = itertools.count()


@pytest.fixture(scope="session")
def broker(memory_folder: Path) -> Iterator[RunningBroker]:
    """A broker for all tests that do not stop it; each uses topics of its own."""
    with RunningBroker(memory_folder / "shared-broker") as running:
        yield running


@pytest.fixture
def client(broker: RunningBroker) -> Iterator[pulsar.Client]:
    made = new_client(broker.url)
    yield made
    # The C++ client answers sends of a fenced producer, or of one whose topic has ended, just before
    # it forgets the producer; a close in between takes it for a producer that failed to close.
    with contextlib.suppress(pulsar.AlreadyClosed):
        made.close()


@pytest.fixture(scope="session")
def admin(broker: RunningBroker) -> Iterator[httpx.Client]:
    """Plain HTTP to the broker's admin API."""
    with httpx.Client(base_url=f"{broker.web_url}/admin/v2", timeout=WAIT_MS / 1000) as made:
        yield made


@pytest.fixture
def topic() -> str:
    return f"topic-{next(_numbers)}"


def new_client(url: str, trust: str | None = None, timeout_s: int = 30) -> pulsar.Client:
    """A client whose operations are tried again for `timeout_s`, also those that are refused."""
    return pulsar.Client(
        url,
        operation_timeout_seconds=timeout_s,
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
        tls_trust_certs_file_path=trust,
        tls_validate_hostname=True,
    )
