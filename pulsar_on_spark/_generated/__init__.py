"""Code that `make protocol` generates from the .proto files in `protocol`; nothing here is written by hand.

It imports only protobuf. Start reading at `protocol/pulsar_entry.proto`; only `protocol` imports from here.
"""
