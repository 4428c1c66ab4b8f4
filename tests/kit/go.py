"""Go's command, which builds programs for tests and benchmarks."""

from __future__ import annotations

import os
import shutil


def find_go() -> str | None:
    """Return the command's path, also where Go's own installer puts it; None without Go."""
    return shutil.which("go", path=f"{os.environ['PATH']}:/usr/local/go/bin")
