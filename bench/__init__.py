"""Benchmarks beside Parquet, Delta and Spark's Kafka source, in one run and under the same confs.

Each benchmark is a module. `harness` defines and measures benchmarks, `report` prints and writes the results.
Start reading at `run`.
"""
