"""AutoRecovery: storage paths that come and go, an auditor that finds bad copies, a worker that restores them.

`plan` decides which copies count and what to do (a pure function); `audit` lists the paths, `scrub` reads all copies in
full over several days, `worker` copies and commits, `repairing` combines these into one pass. `storage_paths` has an
operator's changes to paths. Start reading at `plan`.
"""
