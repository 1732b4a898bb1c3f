"""Data sets of remote stores: workers of a `DataLoader` read after their parent has, and no secret is shown."""

import pytest
from cntkio import CTFDeserializer, MinibatchSource, Remote, StreamDef, StreamDefs, read_ctf
from support.range_server import range_server

torch_data = pytest.importorskip("torch.utils.data", reason="PyTorch is not installed")
pytest.importorskip("fsspec", reason="the extra 'remote' is not installed")
pytest.importorskip("aiohttp", reason="fsspec reads http only with aiohttp")

X = StreamDefs(x=StreamDef(field="x", shape=2))


@pytest.mark.parametrize("method", ["fork", "forkserver", pytest.param("spawn", marks=pytest.mark.thorough)])
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


def test_a_data_set_shows_no_secret_of_a_url() -> None:
    from cntkio.torch import MinibatchDataset

    remote = Remote(storage_options={"headers": {"X": "PASSWORD"}}, num_retries=0)
    with range_server(**{"a.ctf": b"|x 1 2\n|x 3 4\n"}) as server:
        url = f"{server.url.replace('://', '://me:PASSWORD@')}/a.ctf?signature=SIGNATURE"
        shown = repr(MinibatchDataset(MinibatchSource(CTFDeserializer(url, X, remote=remote)), 2))
    assert "minibatches of 2 samples" in shown and "PASSWORD" not in shown and "SIGNATURE" not in shown
