"""Print as JSON the rows that Spark reads from a corpus, in a process of its own."""

import json
import os
import sys
from pathlib import Path

import cntkio.spark
from cntkio import CTFDeserializer, StreamDef, StreamDefs, write_cbf
from pyspark.sql import SparkSession

STREAMS = StreamDefs(x=StreamDef("x", 2), s=StreamDef("s", 9, is_sparse=True))


def main(folder: Path) -> dict[str, object]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    cntkio.spark.register(spark)
    text = folder / "a.ctf"
    text.write_text("".join(f"{key} |x {key} 1 |s {key % 9}:1\n{key} |x 0 {key}\n" for key in range(500)))
    write_cbf(folder / "a.cbf", CTFDeserializer(text, STREAMS, chunk_size_in_bytes=4000), chunk_size_in_bytes=4000)
    streams = {"x": {"field": "x", "shape": 2}, "s": {"field": "s", "shape": 9, "is_sparse": True}}
    options = {"streams": json.dumps(streams), "chunk_size_in_bytes": 4000, "num_partitions": 4, "ids": '["s"]'}
    frame = spark.read.format("cntkio.ctf").options(**options).load(str(text))
    found: dict[str, object] = {
        "schema": frame.schema.simpleString(),
        "tasks": frame.rdd.getNumPartitions(),
        "text": sorted([row["key"], [list(x) for x in row["x"]], list(row["s"])] for row in frame.collect()),
        "binary": sorted(row["key"] for row in spark.read.format("cntkio.cbf").load(str(folder / "a.cbf")).collect()),
    }
    try:
        spark.read.format("cntkio.ctf").option("chunk_size_in_bytes", 0).load(str(text)).count()
        found["wrong"] = "no error"
    except Exception as error:
        found["wrong"] = str(error)[-2000:]
    spark.stop()
    return found


if __name__ == "__main__":
    print("\n" + json.dumps(main(Path(sys.argv[1]))))
