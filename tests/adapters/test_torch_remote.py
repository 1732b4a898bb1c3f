"""Workers of a `DataLoader` read remote stores after their parent has, however they are started."""

import pytest
from cntkio import CTFDeserializer, MinibatchSource, StreamDef, StreamDefs, read_ctf
from support.range_server import range_server

torch_data = pytest.importorskip("torch.utils.data", reason="PyTorch is not installed")
pytest.importorskip("fsspec", reason="the extra 'remote' is not installed")
pytest.importorskip("aiohttp", reason="fsspec reads http only with aiohttp")

X = StreamDefs(x=StreamDef(field="x", shape=2))


@pytest.mark.parametrize("method", ["fork", "spawn", pytest.param("forkserver", marks=pytest.mark.thorough)])
def test_workers_of_a_data_loader_read_after_the_parent(method: str) -> None:
    from cntkio.torch import MinibatchDataset

    with range_server(**{"a.ctf": b"".join(b"|x %d 1\n" % line for line in range(3000))}) as server:
        url = f"{server.url}/a.ctf"
        assert len(read_ctf(url, X)["x"].values) == 3000
        source = MinibatchSource(CTFDeserializer(url, X, chunk_size_in_bytes=1000), randomize=False, max_sweeps=1)
        dataset = MinibatchDataset(source, 100)
        loader = torch_data.DataLoader(
            dataset, batch_size=None, num_workers=2, multiprocessing_context=method, timeout=120
        )
        values = sorted(value for batch in loader for value in batch["x"].values[:, 0].tolist())
    assert values == list(range(3000))
