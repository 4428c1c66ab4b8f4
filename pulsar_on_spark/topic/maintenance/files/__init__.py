"""The segment files of a root: merge small files, rewrite them, and collect files that no record needs."""
