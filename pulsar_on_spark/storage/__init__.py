"""Storage paths and the files on them: what every higher package needs of disks.

It imports `model` only, and reaches the operating system through `files`. Start reading at `storage_path`: a path has
an identity, so that an empty mount point is never taken for a disk whose files are gone. `loss` is the one rule that
separates lost from unreachable data, `health` the one value that says how a path is, and `probe` looks at paths.
"""
