"""An earlier version of this project, built from the repository's history and installed beside the present one."""

from __future__ import annotations

import io
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

import pytest

HOUSE = Path(__file__).parents[2]
_PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")


def build_wheel(source: Path, folder: Path) -> Path:
    """Build the wheel of a source folder."""
    build = ["wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(source)]
    subprocess.run([*_PIP, *build], check=True)
    return next(folder.glob("*.whl"))


def install_wheel(wheel: Path, home: Path) -> Path:
    """Install a wheel into a fresh environment, with this environment's dependencies; returns its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    python = home / "bin" / "python"
    subprocess.run([*_PIP, "--python", str(python), "install", "--quiet", "--no-deps", str(wheel)], check=True)
    # A path in a .pth file is not searched for further .pth files, so this environment's own editable installation
    # stays out.
    site = home / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    (site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return python


def install_commit(commit: str, folder: Path) -> Path:
    """Install the version of a commit; returns its Python. Skips the test where the history is not at hand."""
    archive = subprocess.run(["git", "-C", str(HOUSE), "archive", commit], capture_output=True, check=False)
    if archive.returncode != 0:
        pytest.skip(f"this copy of the repository does not hold the commit {commit}")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(folder / "source", filter="data")
    return install_wheel(build_wheel(folder / "source", folder), folder / "venv")
