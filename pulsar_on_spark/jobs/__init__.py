"""Spark jobs: short programs that call the storage engine. They may import every package except `cli`."""
