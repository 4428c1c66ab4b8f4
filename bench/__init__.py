"""Benchmarks beside Parquet, Delta and Spark's Kafka source, in one run and under the same confs.

One module for each benchmark; `harness` defines and measures one, `report` prints and writes the results.
Start reading at `run`.
"""
