"""Storage paths and the files on them: everything that higher packages need from disks.

It imports `model` only, and reaches the operating system through `files`. Start reading at `storage_path`: a path has
an identity, so that an empty mount point is never mistaken for a disk whose files are gone. `loss` is the one rule that
separates lost from unreachable data. `health` is the one value that describes a path's state, and `probe` checks paths.
"""
