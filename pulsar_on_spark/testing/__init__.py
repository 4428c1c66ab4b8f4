"""File layers that record, crash and fail, for tests of what is written to storage paths.

It may import every other package, and none of them imports it (import-linter checks that). Start reading at
`recording_files`, which replays a write up to every point where a machine may stop.
"""
