"""Child processes of background work: their outcome, and their end with the task that waits for them."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import psutil
import pytest

from pulsar_on_spark.broker.runtime import children
from pulsar_on_spark.broker.runtime.children import run_child
from tests.kit.waiting import until

SAYS = "import sys; sys.stderr.write('much' * 100_000 + 'the end'); sys.exit(3)"
WAITS = "import pathlib, sys, time; pathlib.Path(sys.argv[1]).touch(); time.sleep(600)"
IGNORES = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + WAITS


def test_the_exit_code_and_the_end_of_the_errors_are_returned() -> None:
    assert asyncio.run(run_child([sys.executable, "-c", SAYS], error_bytes=7)) == (3, b"the end")


def test_errors_go_to_the_broker_s_own_log_by_default(capfd: pytest.CaptureFixture[str]) -> None:
    assert asyncio.run(run_child([sys.executable, "-c", SAYS])) == (3, b"")
    assert capfd.readouterr().err.endswith("the end")


def test_a_program_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        asyncio.run(run_child([str(tmp_path / "missing")]))


@pytest.mark.parametrize("program", [WAITS, IGNORES])
def test_a_child_ends_with_the_task_that_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    monkeypatch.setattr(children, "_STOP_TIMEOUT_S", 0.5)
    begun = tmp_path / "begun"

    async def scenario() -> None:
        running = asyncio.create_task(run_child([sys.executable, "-c", program, str(begun)], error_bytes=100))
        await until(begun.exists)
        child = next(each for each in psutil.Process().children() if str(begun) in each.cmdline())
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert running.cancelled()
        await until(lambda: not child.is_running())

    asyncio.run(scenario())
