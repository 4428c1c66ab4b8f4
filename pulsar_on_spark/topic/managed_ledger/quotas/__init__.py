"""Backlog quotas: the age and the size of a backlog, and the refusal of writes when it exceeds its quota. Pure."""
