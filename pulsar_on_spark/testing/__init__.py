"""The kit for tests of storage backends: file layers that record, crash and fail, a faulty proxy, and a contract.

It may import every other package, and none of them imports it (import-linter checks that). Start reading at
`recording_files`, which replays a write up to every point where a machine may stop.
"""
