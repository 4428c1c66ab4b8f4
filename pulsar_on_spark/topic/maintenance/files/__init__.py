"""The segment files of a root: merge small ones, rewrite them, and collect those that no record needs."""
