"""Spark jobs: thin programs that call the engine. May import everything but `cli`."""
