"""AutoRecovery: storage paths that come and go, an auditor that finds bad copies, a worker that restores them.

`plan` decides which copies count and what to do (values in, values out); `audit` lists the paths, `scrub` reads copies
in full in the course of days, `worker` copies and commits, `repairing` puts one pass together.
`storage_paths` is what an operator does to paths. Begin with `plan`.
"""
