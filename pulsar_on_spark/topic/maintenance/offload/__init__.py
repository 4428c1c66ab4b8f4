"""Offload: old segment files move, unchanged, to cold storage paths; readers find them there as on any other path.

`plan` decides which files move and whose old copies may be deleted (pure). `offloading` carries this out with the
worker of repair: a copy on a cold path is staged and verified, and one commit names it and marks the file as offloaded.
Copies on other paths are deleted after the deletion lag. Start reading at `plan`.
"""
