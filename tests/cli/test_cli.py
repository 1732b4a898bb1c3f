"""The command `cntkio`: its output, its complaints and its exit status."""

import ast
import itertools
import os
import pty
import re
import shlex
import shutil
import signal
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cntkio
import numpy as np
import pytest
from cntkio.arguments import calling
from cntkio.cli import main, show
from cntkio.cli.arguments import parser
from cntkio.formats import htk, mlf
from cntkio.storage import index_cache
from cntkio.storage.progress import announced
from support import ROOT, commands
from support.rounds import step

CORPUS_VERBS = ("inspect", "head", "bench", "index")
VERBS = (*CORPUS_VERBS, "config", "convert", "completion")


@pytest.fixture(autouse=True)
def in_a_clone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Run in a copy of the examples, so that their paths are right and their index caches disturb no other test."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__", "*.index"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str], str]:
    """Write a corpus and return its path."""

    def write(text: str) -> str:
        (tmp_path / "corpus.ctf").write_text(text, encoding="ascii")
        return "corpus.ctf"

    return write


def facts(printed: str) -> dict[str, str]:
    """Read what a verb printed: a name, at least two blanks, a fact."""
    return dict(re.split(r" {2,}", line.strip(), maxsplit=1) for line in printed.splitlines())


def test_inspect_prints_the_streams_and_sizes_of_a_corpus(
    written: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = written("7 |w 5:1 |x 1 0\n7 |w 2:1 9:2\n8 |w 0:1 |x 0 0\n")
    assert main(["inspect", path]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert facts(printed.out) == {
        "file": "corpus.ctf",
        "format": "CNTK text format (CTF)",
        "size": "45 bytes",
        "chunks": "1 of at most 33,554,432 bytes",
        "sequences": "2",
        "samples": "3",
        "longest sequence": "2 samples",
        "lengths": "1 %: 1.01, 25 %: 1.25, 50 %: 1.5, 75 %: 1.75, 99 %: 1.99",
        "length histogram": "1 ██ 2",
        "stream w": "sparse, 10 wide, 3 samples, at most 2 in a sequence, 13.3 % not zero",
        "classes": "4 of 10 occur; 0: 1, 2: 1, 5: 1, 9: 1",
        "stream x": "dense, 2 values, 2 samples, at most 1 in a sequence, 25 % not zero",
        "values": "0 to 1, mean 0.25, deviation 0.433",
        "quantiles": "1 %: 0, 25 %: 0, 50 %: 0, 75 %: 0.25, 99 %: 0.97",
        "histogram": "0 █▃ 1",
        "errors": "none",
        "warnings": "none",
    }


def test_facts_are_aligned_in_one_column(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("inspect", "bench"):
        assert main([verb, "examples/iris/iris.ctf"]) == 0
        lines = capsys.readouterr().out.splitlines()
        starts = {match.end() for line in lines if (match := re.match(r" *\S.*? {2,}", line))}
        assert len(starts) == 1 and len(lines) > 5


def test_inspect_counts_all_errors_and_prints_their_locations(
    written: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = written("|x 1 2 |y 1\n|x 3 four |x 3 4 |y 2\n|x five |x 5 6 |y 3\n")
    assert main(["inspect", path]) == 1
    printed = capsys.readouterr()
    assert facts(printed.out)["errors"] == "2 (bad number)"
    first, second = printed.err.splitlines()
    assert first.startswith("cntkio: corpus.ctf, line 2, column 6 ")
    assert second.startswith("cntkio: corpus.ctf, line 3, column 4 ")


def test_inspect_reads_the_streams_it_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "--stream", "words:2000:sparse:w", "examples/alice/test.ctf"]) == 0
    streams = [name for name in facts(capsys.readouterr().out) if name.startswith("stream ")]
    assert streams == ["stream words"]


def test_head_prints_the_first_sequences_with_their_ids(
    written: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(
        "40 |words 5:1 |x 1 0.25\n40 |words 2:1 9:2.5\n30 |words |x 0 -3\n30 |words 1:1\n20 |x 0 0 |words 3:1\n"
    )
    assert main(["head", "-n", "2", path]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "sequence 40",
        "  words  5:1 | 2:1 9:2.5",
        "  x      1 0.25",
        "sequence 30",
        "  words  (empty) | 1:1",
        "  x      0 -3",
    ]


def test_head_prints_the_sequences_before_a_wrong_line(
    written: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = written("|x 1\n|x a\n")
    assert main(["head", "-n", "1", path]) == 0
    assert main(["head", "-n", "2", path]) == 1
    out, err = capsys.readouterr()
    assert out == 2 * "sequence 0\n  x  1\n" and "line 2, column 4" in err


def test_head_of_a_short_corpus_prints_all_of_it(
    written: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["head", written("|x 1\n|x 2\n")]) == 0
    assert capsys.readouterr().out.count("sequence") == 2


def test_head_shortens_long_samples_and_prints_the_number_of_the_rest(
    written: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = written("|x " + " ".join(["12345"] * 1000) + "\n")
    assert main(["head", path]) == 0
    line = capsys.readouterr().out.splitlines()[1]
    shown = line.count("12345")
    assert len(line) < 130 and line.endswith(f"… {1000 - shown:,} more")


@pytest.mark.parametrize("minibatch_size", [1, 100, 100_000])
def test_read_delivers_every_sequence_in_every_sweep(minibatch_size: int, capsys: pytest.CaptureFixture[str]) -> None:
    path = "examples/alice/train.ctf"
    assert main(["bench", "--sweeps", "2", "--minibatch-size", str(minibatch_size), path]) == 0
    printed = facts(capsys.readouterr().out)
    assert (printed["sequences"], printed["samples"]) == ("1,292", "44,932")
    assert re.fullmatch(r"[\d,.]+ MB/s, [\d,]+ samples/s", printed["throughput"])


def test_read_stops_at_the_first_error_with_status_1(
    written: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", written("|x 1 2\n|x 3 four\n")]) == 1
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.startswith("cntkio: corpus.ctf, line 2, column 6 ")


def test_index_writes_a_cache_that_the_next_start_uses(
    written: Callable[[str], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written("|x 1\n|x 2\n")
    before = set(tmp_path.iterdir())
    assert main(["index", path]) == 0
    printed = facts(capsys.readouterr().out)
    (cache,) = set(tmp_path.iterdir()) - before
    assert (printed["sequences"], Path(printed["cache"])) == ("2", cache)


def test_index_counts_all_readers_of_a_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    sections = ["command = a:b\n"]
    for name, count in (("a", 3), ("b", 2)):
        Path(f"{name}.ctf").write_text("|x 1 2\n" * count)
        reader = f"file = {name}.ctf ; input = [ x = [ dim = 2 ; format = dense ] ]"
        sections.append(f"{name} = [ reader = [ readerType = CNTKTextFormatReader ; {reader} ] ]\n")
    Path("c.cntk").write_text("".join(sections))
    assert main(["index", "c.cntk"]) == 0
    assert facts(capsys.readouterr().out)["sequences"] == "5"


def test_index_fails_where_no_cache_can_be_written(
    written: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(path: Path, **_: bool) -> Any:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(index_cache, "written_whole", full)
    assert main(["index", written("|x 1\n")]) == 1
    printed = capsys.readouterr()
    assert facts(printed.out)["cache"].startswith("none could be written: /")
    assert printed.out.count(".index: No space left on device") == 2


@pytest.mark.parametrize("text", ["", "no pipe in here\n", "1 nor here\n"])
def test_verbs_exit_with_1_for_files_that_are_not_a_corpus(
    text: str, written: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(text)
    for verb in CORPUS_VERBS:
        assert main([verb, path]) == 1
        printed = capsys.readouterr()
        assert printed.out == "" and printed.err.startswith("cntkio: corpus.ctf")


@pytest.mark.parametrize("verb", (*CORPUS_VERBS, "config"))
def test_verbs_exit_with_2_for_missing_files(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "nowhere.ctf"]) == 2
    assert capsys.readouterr().err.startswith("cntkio: nowhere.ctf: No such file or directory")


@pytest.mark.parametrize("verb", CORPUS_VERBS)
def test_verbs_suggest_the_nearest_name_for_a_missing_file(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "examples/iris/irsi.ctf"]) == 2
    assert "did you mean 'examples/iris/iris.ctf'?" in capsys.readouterr().err


@pytest.fixture
def binary(tmp_path: Path) -> str:
    """A binary corpus of three sequences."""
    cntkio.write_cbf(tmp_path / "corpus.cbf", {"x": np.array([[1, 2], [3, 4], [5, 6]], np.float32)})
    return "corpus.cbf"


def test_head_and_read_accept_binary_corpora(binary: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["head", "-n", "2", binary]) == 0
    assert capsys.readouterr().out.splitlines() == ["sequence 0", "  x  1 2", "sequence 1", "  x  3 4"]
    assert main(["bench", binary]) == 0
    assert facts(capsys.readouterr().out)["sequences"] == "3"


@pytest.mark.parametrize("verb", ["inspect", "head", "bench"])
def test_verbs_name_a_file_that_no_deserializer_reads(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "corpus.zip").write_bytes(b"PK\3\4" + bytes(50))
    assert main([verb, "corpus.zip"]) == 2
    expected = "corpus.zip is a zip archive, which no deserializer reads; unpack it (unzip corpus.zip)"
    assert expected in capsys.readouterr().err


@pytest.mark.usefixtures("speech")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("packed.zip", "packed.zip is a zip archive, which no deserializer reads; unpack it (unzip packed.zip)"),
        ("a.mlf", "a.mlf is an HTK label file (MLF); expected a text, a binary corpus, a list of features, Parquet"),
        ("examples/iris/irsi.ctf", "did you mean 'examples/iris/iris.ctf'?"),
    ],
)
def test_convert_names_an_input_that_it_does_not_convert(
    name: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("packed.zip").write_bytes(b"PK\3\4" + bytes(50))
    assert main(["convert", "--to", "cbf", "--input", name, "--output", "a.cbf"]) == 2
    assert message in capsys.readouterr().err
    assert not Path("a.cbf").exists()


def test_convert_reads_a_text_in_chunks_of_the_requested_size() -> None:
    ipc = pytest.importorskip("pyarrow.ipc")
    Path("two.ctf").write_text("1 |x 1\n2 |x 2\n")
    assert main(["convert", "--chunk-size", "1", "two.ctf", "two.arrow"]) == 0
    assert ipc.open_file("two.arrow").num_record_batches == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "convert needs two files: cntkio convert IN OUT"),
        (["a.ctf"], "convert needs two files: cntkio convert IN OUT"),
        (["--to", "cbf", "--input", "a.ctf"], "convert needs two files: cntkio convert IN OUT"),
        (["--to", "cbf", "c", "--input", "a", "--output", "b"], "IN and --input exclude each other"),
        (["a.ctf", "a.xyz"], "a.xyz: no format to write has the extension '.xyz'; expected one of .ark, .ctf"),
        (["examples/iris/iris.ctf", "examples/iris/../iris/iris.ctf"], "convert never changes its input"),
        (["examples/iris/*.ctf", "examples/iris/iris.ctf"], "convert never changes its input"),
        (["--split", "0.5,0.5", "examples/iris/iris.ctf", "a.ctf", "./a.ctf"], "a file to write is named twice"),
        (
            ["--merge", "examples/iris/iris.ctf", "examples/iris/../iris/iris.ctf", "a.ctf"],
            "--merge: examples/iris/../iris/iris.ctf is named twice; expected each file once",
        ),
    ],
)
def test_convert_needs_two_files_and_a_known_format(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["inspect", "--jsn", "a.ctf"], "see cntkio inspect --help"),
        (["inspec", "a.ctf"], "cntkio: error: there is no 'inspec'; there are: 'inspect', "),
        (["inspec", "a.ctf"], "; did you mean 'inspect'?\nsee cntkio --help"),
        (["inspect", "--jsn", "a.ctf"], "unrecognized arguments: --jsn; did you mean '--json'?"),
        (["check", "a.ctf", "--max-finding"], "cntkio check: error"),
        (["rule", "--step", "3", "bad-number"], "cntkio rule: error: unrecognized arguments: --step"),
    ],
)
def test_an_unknown_option_suggests_the_nearest_option_of_its_verb(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err


def test_every_verb_names_broken_links_and_random_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    Path("link.ctf").symlink_to("gone.ctf")
    Path("junk.ctf").write_bytes(b"7 |x 1\0\1\2|y 3\0" * 50)
    for verb in (*CORPUS_VERBS, "check", "plan"):
        assert main([verb, "link.ctf"]) == 2
        assert (
            "link.ctf: No such file or directory; it is a link to 'gone.ctf', which does not" in capsys.readouterr().err
        )
        assert main([verb, "junk.ctf"]) == 1
        printed = capsys.readouterr()
        assert "this is not a text, for it has zero bytes" in printed.err + printed.out


def test_standard_output_may_be_closed() -> None:
    command = f"{shlex.quote(sys.executable)} -m cntkio inspect examples/iris/iris.ctf"
    closed = subprocess.run(["bash", "-c", f"{command} >&- 2>&-"], timeout=300)
    full = subprocess.run(["bash", "-c", f"{command} >/dev/full"], timeout=300, capture_output=True, text=True)
    assert (closed.returncode, full.returncode) == (0, 2)
    assert "No space left on device" in full.stderr and "Traceback" not in full.stderr


def test_help_fits_a_terminal_of_80_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for verb in ("", *parser().verbs):
        with pytest.raises(SystemExit):
            main([*([verb] if verb else []), "--help"])
        text, _, examples = capsys.readouterr().out.partition("examples:\n")
        assert max(map(len, text.splitlines())) <= 80
        assert all(line.startswith("  $ cntkio ") or " | cntkio " in line for line in examples.splitlines())
        assert not re.search(r"^ {4}\w+$", text, re.MULTILINE), "a verb without its meaning on the line"


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["no-such-verb"],
        ["inspect"],
        ["head", "-n", "0", "examples/iris/iris.ctf"],
        ["bench", "--minibatch-size", "many", "examples/iris/iris.ctf"],
        ["bench", "--sweeps", "-1", "examples/iris/iris.ctf"],
        ["bench", "--stream", "lengths", "examples/iris/iris.ctf"],
        ["bench", "--stream", "lengths:four", "examples/iris/iris.ctf"],
        ["bench", "--stream", ":4", "examples/iris/iris.ctf"],
    ],
)
def test_unreadable_arguments_exit_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2
    assert capsys.readouterr().err.startswith("cntkio")


def test_contradicting_streams_exit_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    path = "examples/iris/iris.ctf"
    assert main(["bench", "--stream", "a:4:lengths", "--stream", "b:4:lengths", path]) == 2
    assert "'lengths'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("stream", "line"),
    [
        ("dense:1", "  dense  1"),
        ("long name:1:dense", "  long name  1"),
        ("x:1:dense:dense", "  x  1"),
        ("x:9:sparse", "  x  3:4"),
        ("y:9:sparse:x", "  y  3:4"),
        ("y:1:a:b", "  y  2"),
        ("y:1:dense:sparse", "  y  5"),
    ],
)
def test_a_stream_argument_is_dense_and_keeps_its_name_by_default(
    stream: str, line: str, written: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = written("|dense 1 |x 3:4 |a:b 2 |sparse 5\n")
    stream = stream.replace("long name:1:dense", "long name:1:dense:dense")
    assert main(["head", "--stream", stream, path]) == 0
    assert capsys.readouterr().out.splitlines()[1] == line


@pytest.mark.parametrize("verb", VERBS)
def test_the_example_of_every_help_works_in_a_clone(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main([verb, "--help"])
    assert exit_.value.code == 0
    examples = re.findall(r"^  \$ (.*)$", capsys.readouterr().out, re.MULTILINE)
    assert examples
    environment = commands.environment()
    for example in examples:
        finished = subprocess.run(["bash", "-c", example], env=environment, capture_output=True, text=True, timeout=300)
        # The only warning: the flowers of iris.ctf have comments, and a text that is written has none.
        said = re.sub(r"cntkio: .*: comments that are left out: 150\n", "", finished.stderr)
        assert (finished.returncode, said) == (0, ""), example
        assert finished.stdout or verb == "convert", example


def test_progress_shows_only_on_a_terminal() -> None:
    terminal, stderr = pty.openpty()
    arguments = ["bench", "--minibatch-size", "10", "examples/alice/train.ctf"]
    command = [sys.executable, "-m", "cntkio", *arguments]
    drawn = b""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr) as running:
        os.close(stderr)
        while True:
            try:
                drawn += os.read(terminal, 65536)  # otherwise a slow run fills the terminal and waits
            except OSError:
                # Linux reports this when the other end is closed.
                break
        os.close(terminal)
        assert running.stdout is not None
        printed = running.stdout.read()
    assert running.returncode == 0
    assert "100 %" in drawn.decode() and drawn.endswith(b" \r")
    assert b"\r" not in printed
    assert commands.run(*arguments).stderr == ""


@pytest.mark.parametrize(
    ("arguments", "passes"),
    [
        (["index"], ["finding streams", "indexing"]),
        (["inspect"], ["finding streams", "indexing"]),
        (["check"], ["indexing"]),
        (["plan"], ["indexing"]),
        (["bench"], ["finding streams", "indexing"]),
        (["vocab"], ["finding words"]),
        (["convert", "--to", "cbf", "--output", "out.cbf", "--input"], ["finding streams", "indexing"]),
    ],
)
def test_passes_over_a_text_are_shown_only_on_a_terminal(
    arguments: list[str], passes: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(show, "DELAY", 0)
    call = [*arguments, "examples/alice/train.ctf"]
    assert main([*call]) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    Path("examples/alice/train.ctf").touch()  # so that the index cache is not used
    assert main([*call]) == 0
    drawn = capsys.readouterr().err
    shown = re.findall(r"\r(finding \w+|indexing) [█░]+ +(\d+) %  \d+ MB of 1 MB", drawn)
    assert list(dict.fromkeys(name for name, _ in shown)) == passes
    assert {name for name, percent in shown if percent == "100"} == set(passes)
    assert drawn.endswith(" \r")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert main([arguments[0], "--quiet", *call[1:]]) == 0
    assert capsys.readouterr().err == ""


def test_a_bar_shows_bytes_rate_and_remaining_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    with calling(watcher=show.watcher_of(Namespace(quiet=False))), announced("indexing", 40 * 10**9) as add:
        assert add is not None
        for _ in range(4):
            now += 5
            add(4 * 10**9)
    drawn = capsys.readouterr().err.split("\r")
    assert [line.split("%")[1].strip() for line in drawn if "%" in line] == [
        "4.00 GB of 40.00 GB  800 MB/s  0:45 left",
        "8.00 GB of 40.00 GB  800 MB/s  0:40 left",
        "12.00 GB of 40.00 GB  800 MB/s  0:35 left",
        "16.00 GB of 40.00 GB  800 MB/s  0:30 left",
    ]
    assert max(map(len, drawn)) < 80 and drawn[-1] == "" and not drawn[-2].strip()


def test_a_closed_pipe_is_not_an_error() -> None:
    head = f"{shlex.quote(sys.executable)} -m cntkio head -n 646 examples/alice/train.ctf"
    command = f"{head} | head -n 1; exit ${{PIPESTATUS[0]}}"
    finished = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=300, check=False)
    assert (finished.returncode, finished.stdout, finished.stderr) == (0, "sequence 0\n", "")


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_while_the_command_starts_prints_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, sys\n"
        "class Interrupts:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == os.environ['INTERRUPT_AT']:\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupts())\n"
    )
    starts = itertools.cycle([["-m", "cntkio"], [str(Path(sys.executable).parent / "cntkio")]])
    for module in ("numpy", "cntkio.source", "cntkio.cli.command", "cntkio.cli.arguments"):
        environment = {**os.environ, "INTERRUPT_AT": module, "PYTHONPATH": f"{tmp_path}:{ROOT / 'python'}"}
        for start in itertools.islice(starts, 2 // step(2)):
            command = [sys.executable, *start, "--version"]
            ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)
            assert (ended.returncode, ended.stderr) == (-signal.SIGINT, ""), (module, start)


def test_the_handling_of_ctrl_c_is_imported_before_all_else() -> None:
    package = Path(cntkio.errors.__file__).parent
    _, first, *_ = ast.parse((package / "__init__.py").read_text(encoding="utf-8")).body
    assert ast.unparse(first) == "from cntkio import _start as _start"
    nodes = ast.walk(ast.parse((package / "_start.py").read_text(encoding="utf-8")))
    found = {alias.name for node in nodes if isinstance(node, ast.Import | ast.ImportFrom) for alias in node.names}
    assert found == {"itertools", "os", "signal", "sys"}  # which Python has imported, or imports in a few milliseconds


def test_the_command_is_installed_and_knows_its_version() -> None:
    command = Path(sys.executable).parent / "cntkio"
    finished = subprocess.run([command, "--version"], capture_output=True, text=True, timeout=300, check=True)
    assert re.fullmatch(r"cntkio \d+\.\d+\.\d+\n", finished.stdout)


def test_the_command_runs_where_the_package_is_only_on_the_path(tmp_path: Path) -> None:
    folder = tmp_path / "path"
    shutil.copytree(Path(cntkio.__file__).parent, folder / "cntkio", ignore=shutil.ignore_patterns("__pycache__"))
    for part in Path(np.__file__).parents[1].glob("numpy*"):  # NumPy and its libraries; -S hides what is installed
        if not part.name.endswith(".dist-info"):
            (folder / part.name).symlink_to(part)
    command = [sys.executable, "-S", "-m", "cntkio", "head", "-n", "1", "examples/iris/iris.ctf"]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    finished = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert (finished.returncode, finished.stderr) == (0, "")
    assert finished.stdout.startswith("sequence 0\n")


def test_the_command_imports_nothing_but_numpy_and_the_standard_library() -> None:
    code = "import sys; import cntkio.cli; print(*{name.partition('.')[0] for name in sys.modules})"
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    extra = {"rich", "click", "typer", "scipy", "torch", "pyarrow"}
    assert not extra & set(finished.stdout.split())


def test_read_runs_a_configuration_and_config_prints_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert main(["bench", "examples/digits/digits.cntk"]) == 0
    train, test = capsys.readouterr().out.split("\n\n")
    assert (facts(train)["section"], facts(train)["samples"]) == ("Train/reader", "1,348")
    assert (facts(test)["section"], facts(test)["samples"]) == ("Test/reader", "449")
    assert main(["config", "examples/digits/digits.cntk", "Test", "Test=[minibatchSize=64]"]) == 0
    assert facts(capsys.readouterr().out)["minibatch size"] == "64 samples"
    assert main(["config", "--python", "examples/digits/digits.cntk", "Test"]) == 0
    exec(capsys.readouterr().out, {})
    assert capsys.readouterr().out.count("\n") == 2  # minibatches


def test_read_counts_epochs_of_a_configuration_and_draws_their_progress(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert main(["bench", "--sweeps", "2", "examples/digits/digits.cntk", "Test", "Test=[minibatchSize=100]"]) == 0
    printed = capsys.readouterr()
    told = facts(printed.out)
    assert (told["epochs"], told["sequences"], told["minibatches"]) == ("2", "898", "10 of 100 samples")
    drawn = [int(percent) for percent in re.findall(r"(\d+) %", printed.err)]
    assert drawn == [100 * done // 898 for done in (100, 200, 300, 400, 449, 549, 649, 749, 849, 898)]


def test_a_written_configuration_reads_the_corpus(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    recipe = tmp_path / "iris.cntk"
    assert main(["inspect", "--write-config", str(recipe), str(ROOT / "examples" / "iris" / "iris.ctf")]) == 0
    assert "MinibatchSource(" in capsys.readouterr().out
    assert main(["bench", str(recipe)]) == 0
    assert facts(capsys.readouterr().out)["samples"] == "150"


def test_a_binary_file_is_inspected_and_its_written_configuration_reads_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    iris, binary, recipe = ROOT / "examples" / "iris" / "iris.ctf", tmp_path / "iris.cbf", tmp_path / "iris.cntk"
    cntkio.write_cbf(binary, cntkio.CTFDeserializer(iris, cntkio.infer_streams(iris)))
    capsys.readouterr()
    assert main(["inspect", "--write-config", str(recipe), str(binary)]) == 0
    printed = capsys.readouterr().out
    assert facts(printed.split("\n\n")[0])["sequences"] == "150"
    assert "CBFDeserializer(" in printed
    assert main(["bench", str(recipe)]) == 0
    assert facts(capsys.readouterr().out)["samples"] == "150"


def test_a_written_configuration_reads_features_and_labels(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    htk.write_archive("a.ark", "a.scp", [("u1", np.zeros((4, 3))), ("u2", np.zeros((2, 3)))])
    labels = [("u1", np.array([0, 0, 1, 1])), ("u2", np.array([1, 0]))]
    mlf.write_mlf("a.mlf", labels, ["sil", "aa"])
    mlf.write_binary_mlf("a.bmlf", labels)
    mlf.write_mapping("states.list", ["sil", "aa"])
    for beside in ([], ["--labels", "a.mlf", "--mapping", "states.list"], ["--labels", "a.bmlf"]):
        assert main(["inspect", "--write-config", "a.cntk", *beside, "a.scp"]) == 0
        printed = capsys.readouterr().out
        exec(printed[re.search(r"^(from|import) ", printed, re.MULTILINE).start() :], program := {})  # type: ignore[union-attr]
        program["source"].close()
        capsys.readouterr()
        assert main(["bench", "a.cntk"]) == 0
        told = facts(capsys.readouterr().out)
        assert (told["samples"], told["sequences"]) == ("6", "2")
        assert ("labels" in told["streams"]) == bool(beside)
    for wrong, message in (
        (
            ["--labels", "a.mlf", "a.scp", "--write-config", "a.cntk"],
            "does not number its labels; with --mapping, name the file that does",
        ),
        (["a.mlf", "--write-config", "a.cntk"], "needs the features: cntkio inspect LIST.scp --labels a.mlf"),
        (
            ["--labels", "a.mlf", str(ROOT / "examples" / "iris" / "iris.ctf")],
            "applies only to kaldi, scp files",
        ),
    ):
        assert main(["inspect", *wrong]) == 2
        assert message in capsys.readouterr().err


def test_sections_are_refused_without_a_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", str(ROOT / "examples" / "iris" / "iris.ctf"), "Train"]) == 2
    assert "apply only to a configuration" in capsys.readouterr().err


@pytest.fixture
def speech() -> None:
    """A list of two utterances in an archive, and their labels as text and in binary."""
    utterances = [("u1", np.arange(12).reshape(4, 3)), ("x/u2", np.ones((2, 3)))]
    classes = [("u1", np.array([1, 1, 1, 0])), ("x/u2", np.array([1, 1]))]
    cntkio.write_htk_archive("a.ark", "a.scp", utterances, kind="FBANK", big_endian=False, period=50_000)
    cntkio.write_mlf("a.mlf", classes, ["aa", "sil"])
    cntkio.write_binary_mlf("a.bmlf", classes)
    cntkio.write_label_mapping("states.list", ["aa", "sil", "b"])


@pytest.mark.usefixtures("speech")
def test_the_verbs_inspect_show_and_read_lists_of_features(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "a.scp"]) == 0
    told = facts(capsys.readouterr().out)
    assert told["first of them"] == "FBANK, 3 values, 5 ms a frame, little-endian"
    assert (told["sequences"], told["samples"], told["feature files"]) == ("2", "6", "1")
    assert main(["head", "-n", "1", "--stream", "window:9", "a.scp"]) == 0
    assert capsys.readouterr().out.startswith("sequence u1\n  window  0 1 2 0 1 2 3 4 5 | 0 1 2 3")
    assert main(["bench", "--sweeps", "2", "--randomize", "a.scp"]) == 0
    told = facts(capsys.readouterr().out)
    assert (told["sequences"], told["samples"], told["sweeps"]) == ("4", "12", "2, randomized")


@pytest.mark.usefixtures("speech")
def test_the_verbs_inspect_show_and_read_label_files(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, labels, shown in [
        (["a.mlf"], "2: aa, sil", "sil 3 | aa 1"),
        (["--mapping", "states.list", "a.mlf"], "3: aa, sil, b", "sil 3 | aa 1"),
        (["a.bmlf"], "classes, without names", "1 3 | 0 1"),
        (["--mapping", "states.list", "a.bmlf"], "3: aa, sil, b", "sil 3 | aa 1"),
    ]:
        assert main(["inspect", *arguments]) == 0
        told = facts(capsys.readouterr().out)
        assert (told["sequences"], told["samples"], told["rows"], told["labels"]) == ("2", "6", "3", labels)
        assert main(["head", *arguments]) == 0
        assert capsys.readouterr().out.splitlines()[:3] == ["sequence u1", f"  labels  {shown}", "sequence x/u2"]
        assert main(["bench", *arguments]) == 0
        told = facts(capsys.readouterr().out)
        assert (told["sequences"], told["rows"]) == ("2", "3") and "MB/s" in told["throughput"]


@pytest.mark.usefixtures("speech")
def test_errors_in_lists_and_label_files_name_their_location(capsys: pytest.CaptureFixture[str]) -> None:
    text = Path("a.mlf").read_text(encoding="ascii")
    Path("a.mlf").write_text(text.replace("\n0 200000 sil", "\n100000 200000 sil").replace("400000 aa", "x aa"))
    assert main(["inspect", "--mapping", "states.list", "a.mlf"]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "cntkio: a.mlf, line 4, column 1 (byte 30), sequence u1, stream 'labels': a time that is not a number, "
        "or not the beginning of a frame: '300000 x aa'",
        "cntkio: a.mlf, line 7, column 1 (byte 55), sequence x/u2, stream 'labels': the first row does not begin at "
        "frame 0: '100000 200000 sil'",
    ]
    assert main(["head", "empty.scp"]) == 2
    Path("empty.scp").write_text("\n")
    assert main(["bench", "empty.scp"]) == 1
    assert "empty.scp" in capsys.readouterr().err
    Path("empty.mlf").write_text("#!MLF!#\n")
    assert main(["inspect", "empty.mlf"]) == 1
    assert main(["inspect", "--write-config", "x.cntk", "a.mlf"]) == 2
    assert main(["inspect", "--stream", "a:3", "--stream", "b:3", "a.scp"]) == 2


def test_advice_about_a_stream_uses_the_words_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "examples/iris/iris.ctf", "--stream", "l:2:lengths"]) == 1
    assert "the file would fit --stream l:4:lengths" in capsys.readouterr().err
