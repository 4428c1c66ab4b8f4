"""Benchmarks beside Parquet, Delta and Spark's Kafka source, in one run and under the same confs.

One module a benchmark; `harness` says what a benchmark is and measures it, `report` prints and writes the results.
Start reading at `run`.
"""
