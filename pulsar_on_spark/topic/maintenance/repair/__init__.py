"""AutoRecovery: storage paths that come and go, an auditor that finds bad copies, a worker that restores them.

What counts and what is to be done is decided in `plan` (values in, values out); `audit` looks at the paths, `scrub`
reads copies in full in the course of days, `worker` copies and commits, `repairing` puts one pass together.
`storage_paths` is what an operator does to paths. Begin with `plan`.
"""
