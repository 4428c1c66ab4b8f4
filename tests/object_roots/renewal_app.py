"""A Spark application whose streaming query may fail, and is then started again in the same session.

`python -m tests.object_roots.renewal_app ROOT FOLDER`: copies topic `t` to `u` in small batches, with its checkpoint in
FOLDER. It prints the text of a failure as a line of JSON, and waits for a line on its input before it starts again.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.errors import StreamingQueryException

from pulsar_on_spark.datasource.session import spark_session

ROWS_A_BATCH = 20


def main(root: str, folder: Path) -> None:
    confs = {"spark.master": "local[2]", "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}
    spark = spark_session("renewal", delta=False, **confs)
    spark.sparkContext.setLogLevel("OFF")
    read = {"topic": "t", "subscription": "s", "startingOffsets": "earliest", "maxMessagesPerTrigger": ROWS_A_BATCH}
    while True:
        stream = spark.readStream.format("pulsarpy").options(**read).load(root).select("value")
        writer = stream.writeStream.format("pulsarpy").option("topic", "u").option("path", root)
        query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
        try:
            query.awaitTermination()
            break
        except StreamingQueryException as error:
            print(json.dumps(str(error)), flush=True)
            sys.stdin.readline()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
