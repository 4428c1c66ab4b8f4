"""AutoRecovery: an auditor finds missing and bad copies, and a worker restores them, also when storage paths change.

`plan` decides which copies count and what to do (a pure function). `audit` lists the paths, `scrub` reads all copies in
full over several days, `worker` copies and commits, and `repairing` combines these into one pass. `storage_paths` makes
an operator's changes to storage paths. Start reading at `plan`.
"""
