"""Losses, and data that only cannot be reached now."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from pulsar_on_spark.model.errors import (
    CorruptJournalError,
    CorruptSegmentError,
    JournalGoneError,
    SegmentGoneError,
    StoragePathError,
)
from pulsar_on_spark.model.ids import PathId
from pulsar_on_spark.storage.local_path import LocalPath
from pulsar_on_spark.storage.loss import CopyVerdict, summary, verdict_on

WELL = LocalPath(PathId(0), Path("/p"), "c")
GIVEN_UP = LocalPath(PathId(0), Path("/p"), "c", is_given_up=True)
DAMAGED, GONE, UNREACHABLE = CopyVerdict


@pytest.mark.parametrize(
    ("cause", "verdict", "given_up"),
    [
        (CorruptSegmentError("x"), DAMAGED, DAMAGED),
        (CorruptJournalError("x"), DAMAGED, DAMAGED),
        (SegmentGoneError("x"), GONE, GONE),
        (JournalGoneError("x"), GONE, GONE),
        (FileNotFoundError(errno.ENOENT, "x"), GONE, GONE),
        (StoragePathError("x"), UNREACHABLE, GONE),
        (PermissionError(errno.EACCES, "x"), UNREACHABLE, GONE),
        (OSError(errno.EMFILE, "x"), UNREACHABLE, GONE),
        (OSError(errno.EIO, "x"), UNREACHABLE, GONE),
        (NotADirectoryError(errno.ENOTDIR, "x"), UNREACHABLE, GONE),
    ],
)
def test_the_verdict_on_a_copy_by_its_error(cause: Exception, verdict: CopyVerdict, given_up: CopyVerdict) -> None:
    assert verdict_on(cause, WELL) is verdict
    assert verdict_on(cause, GIVEN_UP) is given_up
    assert verdict_on(cause, None) is verdict, "a path without a record is not known to be gone"


@pytest.mark.parametrize(
    ("copies", "together"),
    [
        ((), DAMAGED),
        ((DAMAGED, DAMAGED), DAMAGED),
        ((DAMAGED, GONE), GONE),
        ((GONE, GONE), GONE),
        ((DAMAGED, UNREACHABLE), UNREACHABLE),
        ((GONE, UNREACHABLE), UNREACHABLE),
        ((DAMAGED, GONE, UNREACHABLE), UNREACHABLE),
    ],
)
def test_one_possibly_good_copy_prevents_a_loss(copies: tuple[CopyVerdict, ...], together: CopyVerdict) -> None:
    assert summary(copies) is together
    assert summary(reversed(copies)) is together
