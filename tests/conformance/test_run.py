"""Each official test runs alone, within its time limit."""

from __future__ import annotations

import sys
from pathlib import Path

from conformance.run import run_alone
from conformance.suites import Test as OfficialTest


def test_output_and_exit_code_of_a_test(tmp_path: Path) -> None:
    program = "import os, sys; print(os.getcwd()); print('to stderr', file=sys.stderr); sys.exit(3)"
    code, said = run_alone(OfficialTest("TestName", [sys.executable, "-u", "-c", program], tmp_path, 60))
    assert (code, said) == (3, f"{tmp_path}\nto stderr\n")


def test_a_test_past_its_time_limit_is_stopped_with_its_processes(tmp_path: Path) -> None:
    program = "import subprocess; print('begun', flush=True); subprocess.run(['sleep', '600'])"
    code, said = run_alone(OfficialTest("TestName", [sys.executable, "-c", program], tmp_path, 1))
    assert (code, said) == (None, "begun\n")
