"""The kit for tests of storage backends: file layers that record or fail, an S3 proxy with faults, and contract tests.

It may import every other package, and no other package may import it; import-linter checks both. Start reading at
`recording_files`, which rebuilds the state of a disk after a crash at any step of a write.
"""
