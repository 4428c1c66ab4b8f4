"""Spark jobs: thin programs that call the engine, among them the demo.

May import everything but `cli`. Start reading at `flights`, which uses the engine as an application does.
"""
