"""The broker under test and its peer, a real Pulsar 4.2.4; each listens on the suites' ports with fresh data."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import httpx
import psutil

from conformance.network import BROKER_PORT, WEB_PORT
from conformance.security import ANONYMOUS, GRANTS, Security
from conformance.suites import Suite
from tests.kit.running_broker import RunningBroker

ADMIN_URL: Final = f"http://localhost:{WEB_PORT}/admin/v2"
PEER_SCRIPT: Final = Path(__file__).parent.parent / "bench" / "peers" / "pulsar" / "run"
PEER_START_S: Final = 300.0

IsRunning = Callable[[], bool]


class BrokerMissingError(Exception):
    """A broker did not start; the text names its log."""


@contextmanager
def our_broker(suite: Suite, work: Path) -> Iterator[IsRunning]:
    """Start a broker of ours for a suite; its log is `work/broker.log` when it has ended."""
    root = work / "root"
    shutil.rmtree(root, ignore_errors=True)
    ports = {"broker_service_port": BROKER_PORT, "web_service_port": WEB_PORT}
    security = suite.secure(work)
    broker = RunningBroker(root, {**suite.settings, **security.own_settings, **ports})
    try:
        _make_namespaces(suite, security)
        yield lambda: _is_alive(broker.pid)
    finally:
        try:
            broker.stop()
        finally:
            (work / "broker.log").write_text(broker.said)
            shutil.rmtree(root, ignore_errors=True)


def resolve_pulsar(work: Path) -> None:
    """Fetch the real Pulsar's JARs, before a network namespace takes the network away.

    Args:
        work: The run's work folder, which keeps them.

    Raises:
        BrokerMissingError: Maven is missing, or cannot fetch them.
    """
    done = subprocess.run([str(PEER_SCRIPT), str(work / "pulsar"), "0"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = (done.stderr or done.stdout)[-300:].strip()
        raise BrokerMissingError(f"The real Pulsar cannot be fetched (it needs Java 17 and Maven): {said}")


@contextmanager
def real_pulsar(suite: Suite, work: Path) -> Iterator[IsRunning]:
    """Start a real Pulsar for a suite; its log is `work/pulsar.log`, its JARs are kept for the next start."""
    jars = work.parent / "pulsar"
    jars.mkdir(parents=True, exist_ok=True)
    ports = {"brokerServicePort": BROKER_PORT, "webServicePort": WEB_PORT, "advertisedAddress": "localhost"}
    retention = {"defaultRetentionTimeInMinutes": 0, "defaultRetentionSizeInMB": 0}
    security = suite.secure(work)
    chosen = {**ports, **retention, **suite.pulsar_settings, **security.settings}
    settings = work / "pulsar.conf"
    settings.write_text("".join(f"{name}={value}\n" for name, value in chosen.items()))
    with (work / "pulsar.log").open("wb") as log:
        command = [str(PEER_SCRIPT), str(jars), "1", str(settings)]
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            _wait_for_pulsar(process, work / "pulsar.log", security)
            _make_namespaces(suite, security)
            yield lambda: process.poll() is None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(30)
            shutil.rmtree(jars / "data", ignore_errors=True)


def _wait_for_pulsar(process: subprocess.Popen[bytes], log: Path, security: Security) -> None:
    deadline = time.monotonic() + PEER_START_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            url = f"{ADMIN_URL}/namespaces/public/default"
            if httpx.get(url, headers=security.headers, timeout=5).status_code == httpx.codes.OK:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.5)
    raise BrokerMissingError(f"The real Pulsar did not start (it needs Java 17 and 2 GB): see {log}.")


def _make_namespaces(suite: Suite, security: Security) -> None:
    """Make the namespaces of a suite, and grant what its scripts grant."""
    with httpx.Client(base_url=ADMIN_URL, headers=security.headers, timeout=60) as admin:
        for namespace in suite.namespaces:
            tenant = namespace.partition("/")[0]
            _send(admin, "PUT", f"tenants/{tenant}", {"adminRoles": [], "allowedClusters": ["standalone"]})
            _send(admin, "PUT", f"namespaces/{namespace}", None)
        _send(admin, "POST", "tenants/public", {"adminRoles": [ANONYMOUS], "allowedClusters": ["standalone"]})
        for namespace in ("public/default", *suite.namespaces):
            role = GRANTS.get(namespace, ANONYMOUS)
            _send(admin, "POST", f"namespaces/{namespace}/permissions/{role}", ["produce", "consume"])


def _send(admin: httpx.Client, method: str, path: str, body: object) -> None:
    answer = admin.request(method, path, json=body)
    if answer.status_code != httpx.codes.CONFLICT:  # it exists
        answer.raise_for_status()


def _is_alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
