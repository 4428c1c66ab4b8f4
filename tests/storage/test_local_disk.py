"""File systems that a journal may be on."""

import os
import subprocess

import pytest

from pulsar_on_spark.model.errors import StoragePathError
from pulsar_on_spark.storage.local_disk import refused_file_system, require_local


def test_local_disks_are_accepted(tmp_path):
    assert refused_file_system(tmp_path) is None
    assert refused_file_system(tmp_path / "missing") is None
    require_local(tmp_path)


@pytest.mark.root
def test_a_file_system_of_a_user_process_is_refused(tmp_path):
    """Mounted for another user: the kernel then answers without asking the process that should serve it."""
    fuse = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={fuse},rootmode=40000,user_id=12345,group_id=12345"
    mount = ["mount", "-i", "-t", "fuse", "-o", options, "nobody", str(tmp_path)]
    try:
        subprocess.run(mount, check=True, pass_fds=[fuse])
        try:
            assert refused_file_system(tmp_path) == "FUSE"
            with pytest.raises(StoragePathError, match="is on FUSE, where a journal's writer may not see"):
                require_local(tmp_path)
        finally:
            subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)
    finally:
        os.close(fuse)
