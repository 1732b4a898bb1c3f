"""Print as JSON the rows that Spark reads from a corpus, in a process of its own."""

import gzip
import importlib.util
import json
import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cntkio.spark
from cntkio import CTFDeserializer, StreamDef, StreamDefs, write_cbf
from cntkio.formats.ctf import corpus as texts
from cntkio.storage import compressed
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import SparkSession

sys.path.insert(0, str(Path(__file__).parents[1]))
from support.range_server import range_server

STREAMS = StreamDefs(x=StreamDef("x", 2), s=StreamDef("s", 9, is_sparse=True))


def main(folder: Path) -> dict[str, object]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.python.authenticate.socketTimeout", "200s")  # on a busy machine
    spark = builder.getOrCreate()
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
    found["elsewhere"] = rows_elsewhere(folder / "elsewhere", text.read_bytes())
    found["columns"] = selected(spark, folder)
    found["wrong"] = error_of(lambda: read(spark, text, chunk_size_in_bytes=0))
    found["list"] = read(spark, [str(text), str(folder / "elsewhere" / "a.ctf.gz")], keys="per_file")[::499]
    found["mistakes"] = mistakes(text)
    found["written"] = written(spark, folder)
    if importlib.util.find_spec("aiohttp") is not None:
        found |= of_stores(spark, text.read_bytes())
    spark.stop()
    return found


def written(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """Write rows as both formats, replace them, and fail; return what is in the folders afterwards."""
    found: dict[str, Any] = {}
    rows = [(key, [[float(key), 1.0], [0.0, float(key)]], [key % 9]) for key in range(50)]
    frame = spark.createDataFrame(rows, "key long, x array<array<float>>, s array<int>").repartition(2)
    options = {"shapes": json.dumps({"x": 2}), "one_hot": json.dumps({"s": 9})}
    for form, name in (("text", "ctf"), ("binary", "cbf")):
        target = folder / f"{name} out"
        target.mkdir()  # an empty folder is none
        frame.write.format(f"cntkio.{name}").options(**options).mode("append").save(str(target))
        found[f"{form} files"] = len(list(target.glob(f"*.{name}")))
        again = spark.read.format(f"cntkio.{name}").load(str(target / f"*.{name}"))
        found[form] = sorted(row["key"] for row in again.collect())
    writer = frame.limit(3).write.format("cntkio.ctf").options(**options)
    target = folder / "ctf out"
    found["appended"] = error_of(lambda: writer.mode("append").save(str(target)))
    writer.mode("overwrite").save(str(target))
    found["replaced"] = [one.read_text().count("|x") for one in target.iterdir()]
    wrong = frame.write.format("cntkio.ctf").options(shapes='{"x": 3}', one_hot='{"s": 9}')
    found["wrong"] = error_of(lambda: wrong.mode("overwrite").save(str(target)))
    found["after"] = [one.read_text().count("|x") for one in target.iterdir()]
    found["empty"] = error_of(
        lambda: frame.where("key < 0").write.format("cntkio.ctf").mode("append").save(f"{target}2")
    )
    found["option"] = error_of(lambda: writer.option("shape", "2").mode("append").save(f"{target}2"))
    found["left"] = sorted(one.name for one in folder.iterdir() if "out" in one.name)
    return found


def selected(spark: SparkSession, folder: Path) -> list[object]:
    """Return the rows of one of two streams, in a text whose other stream is broken, and in a binary corpus."""
    path = folder / "half.ctf"
    path.write_text("7 |x oops |s 3:1\n7 |x 1 2\n8 |x 1 2\n")
    streams = {"x": {"field": "x", "shape": 2}, "s": {"field": "s", "shape": 9, "is_sparse": True}}
    options = {"streams": json.dumps(streams), "columns": '["s"]', "ids": '["s"]'}
    frames = (
        spark.read.format("cntkio.ctf").options(**options).load(str(path)),
        spark.read.format("cntkio.cbf").options(columns='["x"]').load(str(folder / "a.cbf")).limit(1),
    )
    return [[frame.columns, [row.asDict(recursive=True) for row in frame.collect()]] for frame in frames]


def mistakes(text: Path) -> dict[str, str]:
    """Return the messages about options that are not possible, and about a key that Spark cannot express."""
    large = text.with_name("large.ctf")
    large.write_text(f"{2**63} |x 1 2\n")

    def of(**options: str) -> str:
        return error_of(lambda: cntkio.spark.CTFSource({"path": str(text), **options}).schema())

    source = cntkio.spark.CTFSource({"path": str(large)})
    reader, (partition,) = _with_partitions(source)
    return {
        "parts": of(num_partitions="0"),
        "remote": of(remote="secret"),
        "streams": of(streams="x"),
        "stream": of(streams='{"x": 3}'),
        "flat": of(flat="x"),
        "columns": of(columns="x"),
        "column": of(columns='["xx"]'),
        "key": of(key="3"),
        "path": error_of(lambda: cntkio.spark.CTFSource({})),
        "large": error_of(lambda: list(reader.read(partition))),
    }


def read(spark: SparkSession, path: Any, **options: Any) -> list[int]:
    path = path if isinstance(path, list) else str(path)
    frame = spark.read.format("cntkio.ctf").options(**{"chunk_size_in_bytes": 4000, **options}).load(path)
    return sorted(row["key"] for row in frame.collect())


def rows_elsewhere(folder: Path, text: bytes) -> list[object]:
    """Read as tasks on another machine, which lacks the caches; return the keys, and how often a text was scanned."""
    folder.mkdir()
    path = folder / "a.ctf.gz"
    path.write_bytes(gzip.compress(text))
    source = cntkio.spark.CTFSource({"path": str(path), "chunk_size_in_bytes": "4000", "num_partitions": "3"})
    reader, partitions = pickle.loads(CloudPickleSerializer().dumps(_with_partitions(source)))
    for cache in folder.glob("*.index"):
        cache.unlink()
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    scans: list[str] = []
    pass_over, make_index = compressed.pass_over, texts.make_index
    compressed.pass_over = lambda *arguments: scans.append("points") or pass_over(*arguments)
    texts.make_index = lambda *arguments: scans.append("index") or make_index(*arguments)
    try:
        batches = [batch for partition in partitions for batch in reader.read(partition)]
    finally:
        compressed.pass_over, texts.make_index = pass_over, make_index
    return [[key for batch in batches for key in batch.column("key").to_pylist()], len(partitions), scans]


def _with_partitions(source: cntkio.spark.CTFSource) -> tuple[Any, Any]:
    reader = source.reader(source.schema())
    return reader, reader.partitions()


def error_of(work: Callable[[], object]) -> str:
    try:
        work()
    except Exception as error:
        return str(error)[-2000:]
    return "no error"


def of_stores(spark: SparkSession, text: bytes) -> dict[str, object]:
    import fsspec

    fsspec.filesystem("memory").pipe("/spark/a.ctf", text)
    middle = text.index(b"\n250 ") + 1
    files = {"a.ctf": text, "b-0.ctf": text[:middle], "b-1.ctf.gz": gzip.compress(text[middle:])}
    with range_server(**files) as server:
        options = {"num_partitions": 3, "remote": json.dumps({"num_requests": 3})}
        return {
            "url": read(spark, f"{server.url}/a.ctf", **options),
            "urls": read(spark, f"{server.url}/b-0.ctf;{server.url}/b-1.ctf.gz", **options),
            "braces": read(spark, server.url + "/b-{0.ctf,1.ctf.gz}", **options),
            "most at once": server.most_at_once,
            "missing": error_of(lambda: read(spark, f"{server.url}/c.ctf")),
            "memory": error_of(lambda: read(spark, "memory://spark/a.ctf")),
            "memory pattern": error_of(lambda: read(spark, "memory://spark/*.ctf")),
        }


if __name__ == "__main__":
    print("\n" + json.dumps(main(Path(sys.argv[1]))))
