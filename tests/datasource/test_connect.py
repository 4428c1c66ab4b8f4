"""Spark Connect: the format works through a Connect server, in a program of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
from pyspark.sql import SparkSession
root = sys.argv[1]
spark = SparkSession.builder.remote("local[2]").getOrCreate()
rows = spark.range(1_000).selectExpr("CAST(id AS STRING) value", "CAST(id % 5 AS STRING) __key")
rows.write.format("pulsarpy").mode("append").option("topic", "x").save(root)
spark.read.format("pulsarpy").option("topic", "x").load(root).createOrReplaceTempView("x")
print("FOUND", spark.sql("SELECT count(*), count(DISTINCT __key), count(DISTINCT __messageId) FROM x").collect()[0])
try:
    spark.read.format("pulsarpy").option("topic", "nope").load(root).count()
except Exception as error:
    print("SAID", str(error).splitlines()[0])
spark.stop()
"""


@pytest.mark.spark
def test_connect_reads_and_writes_topics(tmp_path: Path) -> None:
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable}
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "root")]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2_000:]
    assert "FOUND Row(count(1)=1000, count(DISTINCT __key)=5, count(DISTINCT __messageId)=1000)" in done.stdout
    assert "TopicNotFoundError: Topic persistent://public/default/nope does not exist" in done.stdout
