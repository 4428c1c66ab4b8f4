"""A simulator of everything that changes where a topic's messages are: real roots, files and history tables.

A run is a list of steps: writes, seals, merges, trims, moves to cold paths, builds, upkeep of the history table, and a
user's OPTIMIZE and VACUUM by delta-rs. A step may end with its process before any of its changes to the disk, or
another process may take a step there. Start reading at `run`, then `world` for the steps, `scene` for what readers
get, and `oracle` for the model.
"""
