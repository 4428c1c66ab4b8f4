"""Entries and their rows: cutting rows into entries, taking Pulsar's entries apart, and making them again."""
