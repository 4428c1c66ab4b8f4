"""Outcomes are read from what Go's and Python's test runners print."""

from __future__ import annotations

from conformance.outcomes import WHY_CHARACTERS, Outcome, judge_go, judge_python

GO_FAILED = """=== RUN   TestName
time="..." level=error msg="Failed to reset to message id" error="server error: MetadataError: Consumer not found"
    reader_test.go:1173:
        \tError Trace:\t/root/reader_test.go:1173
        \tError:      \tNot equal:
        \t            \texpected: 1
        \t            \tactual  : 2
        \tTest:       \tTestName
--- FAIL: TestName (0.03s)
FAIL
"""
PYTHON_FAILED = """test_name (pulsar_test.PulsarTest.test_name) ... ERROR

======================================================================
ERROR: test_name (pulsar_test.PulsarTest.test_name)
----------------------------------------------------------------------
Traceback (most recent call last):
  File "pulsar_test.py", line 1, in test_name
    client.get_topic_partitions("a")
_pulsar.TopicNotFound: Pulsar error: TopicNotFound

----------------------------------------------------------------------
Ran 1 test in 0.010s

FAILED (errors=1)
"""


def test_a_go_test_that_passes() -> None:
    assert judge_go(0, "--- PASS: TestName (0.03s)\nPASS\n") == Outcome("passed")


def test_a_go_test_that_fails_gives_its_assertion() -> None:
    assert judge_go(1, GO_FAILED) == Outcome("failed", "Not equal: expected: 1 actual : 2")


def test_a_go_test_that_panics_gives_the_panic() -> None:
    said = "panic: test timed out after 3m0s\n\ngoroutine 1 [running]:\n"
    assert judge_go(2, said) == Outcome("failed", "panic: test timed out after 3m0s")


def test_a_go_test_that_calls_fatal_gives_the_last_line() -> None:
    said = "    a_test.go:3: sent\n    a_test.go:9: context deadline exceeded\n--- FAIL: TestName (0.03s)\n"
    assert judge_go(1, said) == Outcome("failed", "a_test.go:9: context deadline exceeded")


def test_a_go_test_that_skips_itself() -> None:
    said = "    a_test.go:9: only on macOS\n--- SKIP: TestName (0.00s)\nPASS\n"
    assert judge_go(0, said) == Outcome("skipped", "a_test.go:9: only on macOS")


def test_a_process_that_was_stopped_has_failed() -> None:
    assert judge_go(None, "=== RUN   TestName\n") == Outcome("failed", "no end within the time limit")
    assert judge_python(-11, "") == Outcome("failed", "exit code -11")


def test_a_client_that_crashes_after_a_test_that_passed() -> None:
    said = "Ran 1 test in 0.412s\n\nOK\nterminate called without an active exception\n"
    after = "the client's process was ended by signal 6 after the test"
    assert judge_python(-6, said) == Outcome("passed", after)
    assert judge_python(-6, said.replace("OK", "FAILED (errors=1)")).result == "failed"
    assert judge_python(1, said).result == "failed", "an exit code of Python's own is a failure"


def test_a_python_test_that_fails_gives_its_error() -> None:
    assert judge_python(1, PYTHON_FAILED) == Outcome("failed", "_pulsar.TopicNotFound: Pulsar error: TopicNotFound")


def test_a_python_test_that_passes_or_skips_itself() -> None:
    assert judge_python(0, "Ran 1 test in 0.010s\n\nOK\n") == Outcome("passed")
    said = "test_name ... skipped 'docker is required'\n\nRan 0 tests in 0.001s\n\nOK (skipped=1)\n"
    assert judge_python(0, said) == Outcome("skipped", "needs Docker")
    assert judge_python(0, said.replace("docker is required", "later")) == Outcome("skipped", "later")


def test_times_of_day_are_removed_from_outcomes() -> None:
    said = "Traceback (most recent call last):\n  File ...\nValueError: topic my-topic-533245 has 12345 messages\n"
    assert judge_python(1, said).why == "ValueError: topic my-topic-… has 12345 messages"


def test_long_reasons_are_cut() -> None:
    said = f"Traceback (most recent call last):\n  File ...\nValueError: {'long ' * 100}\n"
    assert len(judge_python(1, said).why) == WHY_CHARACTERS


def test_a_test_is_repeated_unless_its_surroundings_are_missing() -> None:
    failed, passed = Outcome("failed", "too late"), Outcome("passed")
    assert failed.may_be_repeated
    assert not passed.may_be_repeated
    assert not Outcome("failed", "needs Docker").may_be_repeated
    assert passed.after(failed) == Outcome("passed", "at the second attempt; at the first: too late")
    assert Outcome("failed", "again").after(failed) == Outcome("failed", "again")
