"""Entries and their rows: cutting rows into entries, splitting Pulsar's entries into rows, and rebuilding them."""
