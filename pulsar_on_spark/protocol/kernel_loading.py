"""Compiled loops for processes that walk many messages. Without numba (the extra `speed`), there are none."""

from __future__ import annotations

import importlib
import logging
from types import ModuleType

log = logging.getLogger(__name__)

WORTH_MESSAGES = 1_000_000
"""Number of walked messages for which the compiled loops would have saved the time that loading them takes.

A message counts once in each walk: over its batch, over its metadata, and over each of its properties.
"""


class KernelLoading:
    """Loader of the compiled loops, which loads them once the process has walked `worth` messages without them."""

    def __init__(self, worth: int = WORTH_MESSAGES) -> None:
        self._left = worth
        self._kernels: ModuleType | None = None
        self._is_decided = False

    def kernels(self, messages: int) -> ModuleType | None:
        """Return the module `protocol.kernels` for a walk over this number of messages; None to walk without it."""
        if not self._is_decided:
            self._left -= messages
            if self._left >= 0:
                return None
            self._is_decided = True
            try:
                self._kernels = importlib.import_module("pulsar_on_spark.protocol.kernels")
            except ImportError as error:
                log.info("Messages are walked without compiled loops: %s", error)
        return self._kernels


LOADING = KernelLoading()
"""The loader of this process."""
