"""Typed values: the bytes of messages to Arrow structs and back, as JSON or Avro."""
