"""Backlog quotas: the age and the size of a backlog, and the writes that a full one refuses. Pure."""
