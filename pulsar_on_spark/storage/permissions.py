"""Permissions: new files and folders in a root get those of their folder.

So the root's folder says who may read and write what is in it, whichever process makes it under whatever umask: its
owner alone (0700), or a group that a broker and Spark share (2770: new files belong to the folder's group). A root that
was made otherwise stays as it is, and follows a `chmod -R`.

delta-rs makes its files with the permissions of the umask; they get these before they are reported.
"""

from __future__ import annotations

import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

PRIVATE: Final = 0o600
"""Files of a root that its owner alone reads and writes."""
SHARED: Final = 0o660
"""Files of a root that the folder's group reads and writes, too."""
_FOLDER_BITS: Final = 0o2777
_FILE_BITS: Final = 0o666


def folder_mode(file_mode: int) -> int:
    """The permissions of folders whose files have these, `PRIVATE` or `SHARED`."""
    return 0o2770 if file_mode == SHARED else 0o700


def opener(path: str | Path, flags: int) -> int:
    """Open a file, as an `opener` of `open` does; one that is made gets the permissions of its folder."""
    mode = mode_of(Path(path).parent) & _FILE_BITS
    descriptor = os.open(path, flags | os.O_CLOEXEC, mode)
    if flags & os.O_CREAT:
        set_mode(descriptor, mode)
    return descriptor


def adopt(descriptor: int, path: Path) -> None:
    """Give an open file the permissions of its folder if it is this user's; directories are left alone."""
    found = os.fstat(descriptor)
    if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid():
        set_mode(descriptor, mode_of(path.parent) & _FILE_BITS)


def copy_file(source: Path, target: Path) -> None:
    """Copy a file's content; the copy gets the permissions of its own folder."""
    shutil.copyfile(source, target)
    set_mode(target, mode_of(target.parent) & _FILE_BITS)


def make_folder(path: Path) -> None:
    """Make a folder with the permissions of the one that it is in; `FileExistsError` if the name is taken."""
    os.mkdir(path, mode_of(path.parent))
    set_mode(path, mode_of(path.parent))


def make_folders(path: Path) -> None:
    """Make a folder and those above it, as far as they are missing."""
    if not path.is_dir():
        make_folders(path.parent)
        with suppress(FileExistsError):
            make_folder(path)


def mode_of(folder: Path) -> int:
    """The permissions of a folder, as others may get them."""
    return stat.S_IMODE(os.stat(folder).st_mode) & _FOLDER_BITS


def set_mode(what: int | Path, mode: int) -> None:
    """Give a file or a folder permissions, unless it belongs to another user: then it keeps those it has."""
    if stat.S_IMODE(os.stat(what).st_mode) & _FOLDER_BITS != mode:
        # It is another user's, or on a file system without permissions of its own.
        with suppress(PermissionError):
            os.chmod(what, mode)
