"""Pulsar's wire format: stored entries, and the commands between clients and a broker; nothing here does IO.

It may import `model`, numpy, Arrow, protobuf and the compression libraries, and of this project nothing else. Start
reading at `pulsar_entry.proto`, then `entry_frame` (the bytes around it) and `field_walk` (whole columns of messages);
for connections at `pulsar_commands.proto`, then `server` (bytes in, events out) and `replies` (bytes back).
"""
