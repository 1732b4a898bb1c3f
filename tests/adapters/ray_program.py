"""Print as JSON the rows that Ray reads from a corpus; a program, because Ray changes its process for good."""

import json
import os
import sys
from pathlib import Path

import cntkio.ray
import ray
from cntkio import CTFDeserializer, StreamDef, StreamDefs, arrow, read_ctf, write_cbf

STREAMS = StreamDefs(x=StreamDef("x", 2), s=StreamDef("s", 9, is_sparse=True))


def main(folder: Path) -> dict[str, object]:
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=200 << 20, log_to_driver=False)
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
