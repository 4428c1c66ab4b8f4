"""Helpers for tests of storage backends: file layers that record or fail, an S3 proxy with faults, and contract tests.

This package may import every other package, and no other package may import it, as import-linter checks. Start reading
at `recording_files`, which rebuilds the state of a disk after a crash at any step of a write.
"""
