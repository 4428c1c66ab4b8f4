"""The testing toolkit that ships with the package, so that a new store can be tested as ours are.

It may import every other package, and none of them imports it (import-linter checks that). Start reading at
`recording_files`, which replays a write up to every point where a machine may stop.
"""
