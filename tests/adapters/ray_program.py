"""Print as JSON the rows that Ray reads from a corpus; in a process of its own, which Ray changes for good."""

import gzip
import importlib.util
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cntkio.ray
import numpy as np
import pyarrow as pa
import ray
from cntkio import (
    CBFDeserializer,
    CorpusError,
    CTFDeserializer,
    Remote,
    StreamDef,
    StreamDefs,
    arrow,
    read_ctf,
    write_cbf,
    write_ctf,
)
from cntkio.storage import compressed

sys.path.insert(0, str(Path(__file__).parents[1]))
from support.range_server import range_server

STREAMS = StreamDefs(x=StreamDef("x", 2), s=StreamDef("s", 9, is_sparse=True))


def cntkio_text(folder: Path, corpus: CTFDeserializer) -> str:
    write_ctf(folder / "expected.ctf", corpus)
    return (folder / "expected.ctf").read_text()


class _Watched(CTFDeserializer):
    """A corpus that notes when it makes an index, or looks for access points."""

    def open(self, **options: Any) -> Any:
        pass_over = compressed.pass_over

        def noted(*arguments: Any) -> Any:
            Path(f"{self.filename}.scanned").touch()
            return pass_over(*arguments)

        compressed.pass_over = noted
        try:
            corpus = super().open(**options)
        finally:
            compressed.pass_over = pass_over
        if any(caches.writers for caches in corpus.index.caches):
            Path(f"{self.filename}.scanned").touch()
        return corpus


def scans_of_tasks(folder: Path, text: bytes) -> list[object]:
    """Read in tasks that find no caches; return whether all rows arrive, the number of caches, and if tasks scanned."""
    folder.mkdir()
    path, scanned = folder / "b.ctf", folder / "b.ctf.scanned"
    path.write_bytes(text)
    corpus = _Watched(path, STREAMS, chunk_size_in_bytes=4000, cache_index=True)
    chunks = cntkio.convert.corpus_chunks(corpus)
    scanned.unlink()
    caches = corpus.index_caches()
    source = cntkio.ray.CorpusDatasource(chunks, index_caches=caches)
    for cache in caches:
        cache.unlink()  # as on another machine
    keys = [row["key"] for row in ray.data.read_datasource(source, override_num_blocks=2).iter_rows()]
    return [keys == list(range(1000)), len(caches), scanned.exists()]


def files_of_tensors(folder: Path, text: Path) -> list[object]:
    """Write batches of NumPy, of which Ray makes tensors; return the text of one sequence of each length."""
    rows = cntkio.ray.read_ctf(text, STREAMS, ids=["s"], chunk_size_in_bytes=4000)
    of_numpy = rows.drop_columns(["x"]).map_batches(lambda batch: batch)
    cntkio.ray.write_to_one_ctf(of_numpy, folder.with_suffix(".ctf"), one_hot={"s": 9})
    matrix = ray.data.from_numpy(np.arange(6, dtype=np.float32).reshape(3, 2))
    cntkio.ray.write(matrix, folder, shapes={"data": 2})
    written = "".join(path.read_text() for path in sorted(folder.iterdir()))
    return [folder.with_suffix(".ctf").read_text().splitlines()[:2], written]


def mistakes(folder: Path, text: Path) -> dict[str, str]:
    """Return the messages about mistakes of users."""
    folder.mkdir()
    rows = cntkio.ray.read_ctf(text, STREAMS, chunk_size_in_bytes=4000, override_num_blocks=4)
    gone = folder / "gone.ctf"
    gone.write_bytes(text.read_bytes())
    only_here = cntkio.ray.read_ctf(gone, STREAMS, chunk_size_in_bytes=4000)
    gone.unlink()
    cntkio.ray.write(rows.limit(3).drop_columns(["s"]), folder / "written", shapes={"x": 2})

    def of(columns: dict[str, Any], **options: Any) -> Callable[[], object]:
        data = ray.data.from_arrow(pa.table({"key": list(range(len(columns["x"]))), **columns}))
        return lambda: cntkio.ray.write(data, folder / "new", **options)

    def elsewhere(part: Any) -> str:
        os.chdir("/")
        return message_of(part.read)

    os.chdir(text.parent)
    relative = cntkio.convert.corpus_chunks(CTFDeserializer(text.name, STREAMS))
    os.chdir("/tmp")
    first, second = ({"key": [1], "x": [1]}, {"key": [2], "x": [1.5]})
    union = ray.data.from_arrow(pa.table(first)).union(ray.data.from_arrow(pa.table(second)))
    lacking = ray.data.from_arrow(pa.table(first)).union(ray.data.from_arrow(pa.table({"key": [2]})))
    return {
        "no such file": message_of(only_here.materialize),
        "relative": ray.get(ray.remote(elsewhere).remote(relative)),
        "twice": message_of(lambda: cntkio.ray.write(rows, folder / "written")),
        "format": message_of(lambda: cntkio.ray.write(rows, folder / "new", to="csv")),  # type: ignore[arg-type]
        "texts": message_of(of({"x": ["a"]})),
        "null": message_of(of({"x": [1.0, None]})),
        "nested null": message_of(of({"x": [[1.0], [2.0, None]]})),
        "tensors": message_of(lambda: cntkio.ray.write(rows.map_batches(lambda batch: {"x": batch["key"]
                                                      .reshape(-1, 1)}), folder / "new")),
        "objects": message_of(lambda: cntkio.ray.write(rows.map_batches(lambda batch: batch), folder / "new")),
        "types": message_of(lambda: cntkio.ray.write_to_one_ctf(union, folder / "a.ctf")),
        "columns": message_of(lambda: cntkio.ray.write_to_one_ctf(lacking, folder / "a.ctf")),
        "no chunks": str(ray.data.read_datasource(cntkio.ray.CorpusDatasource(relative[:0])).count()),
        "blocks": str(cntkio.ray.read_ctf(text, STREAMS, override_num_blocks=500).count()),
    }  # fmt: skip


def message_of(work: Callable[[], object]) -> str:
    try:
        return f"no error: {work()}"
    except Exception as error:
        return str(error)[-4000:]


class _Dying(CTFDeserializer):
    """A corpus whose first task dies while it reads."""

    def open(self, **options: Any) -> Any:
        corpus = super().open(**options)
        load, died = corpus.load, Path(f"{self.filename}.died")

        def dying(chunk_id: int) -> Any:
            if chunk_id == 3 and not died.exists():
                died.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return load(chunk_id)

        corpus.load = dying
        return corpus


def keys_when_a_read_task_is_killed(folder: Path, corpus: CTFDeserializer) -> list[object]:
    dying = _Dying(corpus.filename, STREAMS, chunk_size_in_bytes=4000)
    rows = ray.data.read_datasource(cntkio.ray.CorpusDatasource(dying), override_num_blocks=4)
    keys = [row["key"] for row in rows.iter_rows()]
    return [keys == list(range(1000)), Path(f"{corpus.filename}.died").exists()]


def of_stores(text: bytes) -> dict[str, object]:
    """Read objects of stores in tasks, and return the keys, and the errors about stores in memory."""
    import fsspec

    middle = text.index(b"\n500 ") + 1
    files = {"a.ctf": text, "b-0.ctf": text[:middle], "b-1.ctf.gz": gzip.compress(text[middle:])}
    options: dict[str, Any] = {"chunk_size_in_bytes": 4000, "override_num_blocks": 3}
    with range_server(**files) as server:
        several = [f"{server.url}/b-0.ctf", f"{server.url}/b-1.ctf.gz"]
        corpus = CTFDeserializer(f"{server.url}/a.ctf", STREAMS, chunk_size_in_bytes=4000)
        read = {
            "one": cntkio.ray.read_ctf(f"{server.url}/a.ctf", STREAMS, remote=Remote(num_requests=3), **options),
            "several": cntkio.ray.read_ctf(several, **options),
            "braces": cntkio.ray.read_ctf(server.url + "/b-{0.ctf,1.ctf.gz}", **options),
            "source": ray.data.read_datasource(cntkio.ray.CorpusDatasource(corpus), override_num_blocks=3),
        }
        keys = {name: [row["key"] for row in rows.iter_rows()] for name, rows in read.items()}
    memory = fsspec.filesystem("memory")
    memory.pipe("/ray/a.ctf", text)
    in_memory = []
    for name, remote in (
        ("memory://ray/a.ctf", None),
        ("memory://ray/*.ctf", None),
        ("/ray/a.ctf", Remote(store=memory)),
    ):
        try:
            cntkio.ray.read_ctf(name, STREAMS, remote=remote, **options).materialize()
            in_memory.append("no error")
        except Exception as error:
            in_memory.append(str(error)[-4000:])
    return {"urls": keys, "in memory": in_memory}


def main(folder: Path) -> dict[str, object]:
    for tries_left in (2, 1, 0):
        try:
            ray.init(num_cpus=2, include_dashboard=False, object_store_memory=200 << 20, log_to_driver=False)
            break
        except Exception as error:  # on a busy machine, Ray's limit of 30 s for its own start is too short
            if "timed out during startup" not in str(error) or not tries_left:
                raise
            ray.shutdown()
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.execution_options.preserve_order = True
    text = folder / "a.ctf"
    text.write_text("".join(f"{key} |x {key} 1 |s {key % 9}:1\n{key} |x 0 {key}\n" for key in range(1000)))
    corpus = CTFDeserializer(text, STREAMS, chunk_size_in_bytes=4000)
    write_cbf(folder / "a.cbf", corpus, chunk_size_in_bytes=4000)
    found: dict[str, object] = {}

    rows = cntkio.ray.read_ctf(text, STREAMS, ids=["s"], chunk_size_in_bytes=4000, override_num_blocks=4)
    found["text"] = [[row["key"], [list(map(float, x)) for x in row["x"]], list(map(int, row["s"]))]
                     for row in rows.iter_rows()]  # fmt: skip
    found["binary"] = [row["key"] for row in cntkio.ray.read_cbf(folder / "a.cbf").iter_rows()]

    schema = arrow.RecordBatches(corpus, ids=["s"]).schema
    cntkio.ray.write(rows, folder / "written", shapes=schema)
    files = sorted((folder / "written").iterdir())
    found["files"] = len(files)
    found["written"] = [key for file in files for key in read_ctf(file, STREAMS).keys_of_sequences.tolist()]
    cntkio.ray.write(rows.limit(3), folder / "binary", to="cbf", shapes=schema)
    found["written binary"] = [path.suffix for path in (folder / "binary").iterdir()]

    several = [folder / f"part-{number}.ctf" for number in range(3)]
    lines = text.read_bytes().splitlines(keepends=True)
    for number, path in enumerate(several):
        path.write_bytes(b"".join(lines[700 * number : 700 * (number + 1)]))
    several[1].with_suffix(".ctf.gz").write_bytes(gzip.compress(several[1].read_bytes()))
    several[1].unlink()
    together = cntkio.ray.read_ctf(str(folder / "part-{0..2}.ctf*"), STREAMS, chunk_size_in_bytes=4000)
    found["several"] = [row["key"] for row in together.iter_rows()]
    listed = cntkio.ray.read_ctf([several[2], several[0]], chunk_size_in_bytes=4000)
    found["listed"] = [row["key"] for row in listed.iter_rows()]

    cntkio.ray.write_to_one_ctf(rows, folder / "one.ctf", shapes=schema)
    cntkio.ray.write_to_one_cbf(rows, folder / "one.cbf", shapes=schema)
    found["one text"] = (folder / "one.ctf").read_text() == cntkio_text(folder, corpus)
    found["one binary"] = cntkio.convert.corpus_chunks(CBFDeserializer(folder / "one.cbf")).read().num_sequences
    try:
        cntkio.ray.write_to_one_ctf(rows.limit(0), folder / "none.ctf", shapes=schema)
    except CorpusError as error:
        found["none"] = str(error)

    found["tensors"] = files_of_tensors(folder / "tensors", text)
    found["mistakes"] = mistakes(folder / "mistakes", text)
    found["scans"] = scans_of_tasks(folder / "scans", text.read_bytes())
    found["scans of gzip"] = scans_of_tasks(folder / "scans of gzip", gzip.compress(text.read_bytes()))
    found["killed"] = keys_when_a_read_task_is_killed(folder, corpus)

    if importlib.util.find_spec("aiohttp") is not None:
        found |= of_stores(text.read_bytes())

    died = folder / "died"

    def read_after_a_death(part: object) -> list[int]:
        if not died.exists():
            died.touch()
            os._exit(1)  # as if the machine had failed
        return part.read().keys_of_sequences.tolist()  # type: ignore[attr-defined, no-any-return]

    (part,) = cntkio.convert.corpus_chunks(corpus)[2:4].split(1)
    again = ray.get(ray.remote(max_retries=3)(read_after_a_death).remote(part))
    found["repeated"] = [again, part.read().keys_of_sequences.tolist(), died.exists()]

    source = cntkio.ray.CorpusDatasource(corpus)
    with text.open("a") as file:
        file.write("5000 |x 1 1\n")
    try:
        ray.data.read_datasource(source).count()
        ray.data.read_datasource(source).materialize()
        found["changed"] = "no error"
    except Exception as error:
        found["changed"] = str(error)[-4000:]
    ray.shutdown()
    return found


if __name__ == "__main__":
    print("\n" + json.dumps(main(Path(sys.argv[1]))))
