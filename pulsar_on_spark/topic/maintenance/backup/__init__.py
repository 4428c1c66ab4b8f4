"""Backups of a root: copies that are roots themselves."""
