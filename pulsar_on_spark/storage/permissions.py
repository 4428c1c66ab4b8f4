"""Permissions: new files and folders in a root get the permissions of the folder in which they are created.

So the root's folder decides about access to everything in it, whichever process creates a file and under any umask. The
owner alone has access (0700), or a group that a broker and Spark share (2770: new files belong to the folder's group).
Other permissions of an existing root are kept, and a `chmod -R` changes them.

A library may create files with the permissions of the umask; they are corrected when the file is synced.
"""

from __future__ import annotations

import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

PRIVATE: Final = 0o600
"""Mode of files that only the root's owner may read and write."""
SHARED: Final = 0o660
"""Mode of files that the folder's group may read and write, too."""
_FOLDER_BITS: Final = 0o2777
_FILE_BITS: Final = 0o666


def folder_mode(file_mode: int) -> int:
    """Return the mode of folders for files of mode `PRIVATE` or `SHARED`."""
    return 0o2770 if file_mode == SHARED else 0o700


def opener(path: str | Path, flags: int) -> int:
    """Open a file and return its descriptor, as an `opener` for `open`; a new file gets its folder's permissions."""
    mode = mode_of(Path(path).parent) & _FILE_BITS
    descriptor = os.open(path, flags | os.O_CLOEXEC, mode)
    if flags & os.O_CREAT:
        set_mode(descriptor, mode)
    return descriptor


def adopt(descriptor: int, path: Path) -> None:
    """Give an open file the permissions of its folder if this user owns it; directories are not changed."""
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
        set_mode(descriptor, mode_of(path.parent) & _FILE_BITS)


def copy_file(source: Path, target: Path) -> None:
    """Copy a file's content; the copy gets the permissions of its own folder."""
    shutil.copyfile(source, target)
    set_mode(target, mode_of(target.parent) & _FILE_BITS)


def make_folder(path: Path) -> None:
    """Make a folder with the permissions of its parent; `FileExistsError` if the name is taken."""
    os.mkdir(path, mode_of(path.parent))
    set_mode(path, mode_of(path.parent))


def make_folders(path: Path) -> None:
    """Make a folder and its missing parents."""
    if not path.is_dir():
        make_folders(path.parent)
        with suppress(FileExistsError):
            make_folder(path)


def mode_of(folder: Path) -> int:
    """Return the mode bits that new files and folders inherit from their folder."""
    return stat.S_IMODE(os.stat(folder).st_mode) & _FOLDER_BITS


def set_mode(what: int | Path, mode: int) -> None:
    """Set the permissions of a file or folder, unless another user owns it."""
    if stat.S_IMODE(os.stat(what).st_mode) & _FOLDER_BITS != mode:
        # It belongs to another user, or its file system has no permissions.
        with suppress(PermissionError):
            os.chmod(what, mode)
