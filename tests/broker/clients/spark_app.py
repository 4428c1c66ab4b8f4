"""A Spark application on a broker's root, whose user passes credentials that it does not need.

`python -m tests.broker.clients.spark_app ROOT FOLDER TOKEN`; event logs and the checkpoint go into FOLDER.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from pulsar_on_spark.datasource.session import spark_session


def main(root: str, folder: Path, token: str) -> None:
    events = folder / "events"
    events.mkdir()
    spark = spark_session(
        "app",
        delta=False,
        **{
            "spark.master": "local[2]",
            "spark.ui.enabled": "false",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": events.as_uri(),
            "spark.eventLog.compress": "false",
        },
    )
    spark.sparkContext.setLogLevel("INFO")
    options = {
        "path": root,
        "pulsar.client.authPluginClassName": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
        "pulsar.client.authParams": f"token:{token}",
        "authParams": f"token:{token}",
    }

    def shown(frame: DataFrame) -> DataFrame:
        frame.explain("extended")
        frame.explain("formatted")
        return frame

    shown(spark.read.format("pulsarpy").options(**options, topic="t").load()).show()
    rows = spark.createDataFrame([(b"by spark",)], "value binary")
    rows.write.format("pulsarpy").options(**options, topic="u").mode("append").save()
    stream = shown(spark.readStream.format("pulsarpy").options(**options, topic="t", startingOffsets="earliest").load())
    query = (
        stream.select("value")
        .writeStream.format("pulsarpy")
        .options(**options, topic="u", checkpointLocation=str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    query.explain(True)
    print(query.lastProgress)
    for wrong in (
        {"path": f"{root}-absent"},
        {"topic": "absent"},
        {"valueFormat": "x"},
        {"startingOffset": "earliest"},
    ):
        try:
            spark.read.format("pulsarpy").options(**{**options, "topic": "t", **wrong}).load().show()
        except PySparkException as error:
            print("refused:", error)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
