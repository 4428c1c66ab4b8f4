"""A Spark application on a root on an object store; prints what it found as JSON.

`python -m tests.object_roots.spark_app MASTER ROOT FOLDER`; checkpoint and event logs go into FOLDER of the driver.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pulsar_on_spark.datasource.session import spark_session

ROWS = 2_000


def main(master: str, root: str, folder: Path) -> None:
    events = folder / "events"
    events.mkdir()
    confs = {
        "spark.master": master,
        "spark.ui.enabled": "false",
        "spark.executor.memory": "512m",
        "spark.task.maxFailures": "1",
        "spark.driver.host": "127.0.0.1",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",
    }
    spark = spark_session("objects", delta=False, **confs)
    spark.sparkContext.setLogLevel("WARN")
    found: dict[str, object] = {}

    def topic(name: str) -> dict[str, str]:
        return {"path": root, "topic": name}

    numbers = spark.range(0, ROWS, 1, 4).selectExpr("CAST(id AS STRING) AS value", "CAST(id % 7 AS STRING) AS __key")
    numbers.write.format("pulsarpy").mode("append").options(**topic("t")).save()
    read = spark.read.format("pulsarpy").options(**topic("t")).load()
    read.explain("extended")
    found["read"] = sorted(int(row.value) for row in read.selectExpr("CAST(value AS STRING) AS value").collect())

    for _ in range(2):  # the second run has nothing to do but what was written between
        stream = spark.readStream.format("pulsarpy").options(**topic("t"), startingOffsets="earliest")
        query = (
            stream.option("subscription", "s").load().select("value")
            .writeStream.format("pulsarpy").options(**topic("u"))
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )  # fmt: skip
        query.awaitTermination()
        numbers.where(f"value = {ROWS - 1}").write.format("pulsarpy").mode("append").options(**topic("t")).save()
    copied = spark.read.format("pulsarpy").options(**topic("u")).load().selectExpr("CAST(value AS STRING) AS value")
    found["copied"] = sorted(int(row.value) for row in copied.collect())
    print(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
