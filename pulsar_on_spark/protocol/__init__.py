"""Pulsar's wire format: stored entries, and the commands between clients and a broker. The package does no IO.

The package may import numpy, Arrow, protobuf, the compression libraries and, of this project, only `model`. To learn
the format of entries, read `pulsar_entry.proto`, then `entry_frame` (an entry's frame) and `field_walk` (fields of many
messages at once). For connections, read `pulsar_commands.proto`, then `server` (decodes a client's bytes to events) and
`replies` (encodes the broker's commands).
"""
