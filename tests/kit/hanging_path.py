"""A storage path in a directory that hangs, as a directory of a server that is away does."""

from __future__ import annotations

import os
import time
from pathlib import Path

from pulsar_on_spark.storage.identity import IDENTITY_NAME


class HangingPath:
    """Context manager in which opening the path's identity hangs, until its end or `answer`.

    A pipe takes the identity's place: opening one without a writer hangs.
    """

    def __init__(self, directory: Path) -> None:
        self._identity = directory / IDENTITY_NAME
        self._pipe = directory / "pipe"
        self._content = self._identity.read_bytes()

    def __enter__(self) -> HangingPath:
        self._identity.unlink()
        os.mkfifo(self._identity)
        return self

    def answer(self) -> None:
        """Let calls that hang return, and later ones work. Some of those that hang read a damaged identity."""
        if self._identity.is_fifo():
            self._identity.rename(self._pipe)
            self._identity.write_bytes(self._content)
        with open(self._pipe, "r+b", buffering=0) as pipe:
            pipe.write(self._content)
            time.sleep(0.05)

    def __exit__(self, *_: object) -> None:
        self.answer()
