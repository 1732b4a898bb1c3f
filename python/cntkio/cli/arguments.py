"""The arguments of the command: a parser for each verb, with examples in its help.

A parsed namespace has the function of its verb as `verb` and, for a converter, its function as `converter`.
"""

from __future__ import annotations

import argparse
from argparse import ArgumentTypeError
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

from cntkio._core import __version__
from cntkio.cli import convert
from cntkio.cli.check import OUTPUT_FORMATS, check, rule
from cntkio.cli.completion import completion
from cntkio.cli.config import config
from cntkio.cli.head import head
from cntkio.cli.inspect import inspect
from cntkio.cli.plan import DEALS, plan
from cntkio.cli.read import index, read
from cntkio.cli.stats import stats
from cntkio.cli.vocab import vocab
from cntkio.cli.words import Parser
from cntkio.formats.joined_index import KeysOf
from cntkio.formats.remote import REMOTE_NUMBERS
from cntkio.streams import StreamDef
from cntkio.survey.rules import RULES

_STREAM = "NAME:DIM[:sparse][:ALIAS]"
_CORPUS = (
    "a corpus in CNTK's text or binary format, a list of HTK features (scp), a label file (MLF), a configuration, or a "
    "Parquet or Arrow file; compressed with gzip, zstd, bzip2 or xz; - for standard input"
)


def parser(arguments: Sequence[str] = ()) -> Parser:
    """Return the parser of the command.

    Args:
        arguments: The arguments that will be parsed. They decide which parser `convert` gets, because its converters
            have arguments of their own.
    """
    whole = Parser(
        prog="cntkio",
        description="Inspect, check, read and convert corpora in CNTK's formats.",
        epilog="cntkio VERB --help shows examples of each verb.",
    )
    whole.add_argument("--version", action="version", version=f"cntkio {__version__}")
    verbs = whole.add_subparsers(title="verbs", metavar="VERB", required=True)
    for add in (
        _add_inspect,
        _add_head,
        _add_stats,
        _add_check,
        _add_rule,
        _add_vocab,
        _add_plan,
        _add_read,
        _add_config,
        _add_index,
    ):
        add(verbs)
    names_converter = arguments[:1] == ["convert"] and not _CONVERTERS.isdisjoint(arguments[1:2])
    (_add_converters if names_converter else _add_convert)(verbs)
    _add_completion(verbs, whole)
    return whole


# ------------------------------------------------------------------------------------------------------ verbs


def _add_inspect(verbs: Any) -> None:
    added = _verb(
        verbs,
        inspect,
        "print the contents of a corpus",
        ["cntkio inspect examples/digits/train.ctf", "cntkio inspect --json examples/iris/iris.ctf"],
    )
    _add_corpora(added)
    added.add_argument("--html", metavar="FILE", type=Path, help="also write a page with figures and pictures to FILE")
    added.add_argument(
        "--write-config",
        metavar="FILE",
        type=Path,
        help="write a configuration that reads the corpus to FILE, and print the equivalent Python program",
    )
    added.add_argument(
        "--labels",
        metavar="FILE",
        type=Path,
        help="with --write-config and a list of features: the labels of these features",
    )


def _add_head(verbs: Any) -> None:
    examples = ["cntkio head -n 2 examples/alice/train.ctf", "gzip -c examples/iris/iris.ctf | cntkio head -n 1 -"]
    added = _verb(verbs, head, "print the first sequences", examples)
    _add_corpora(added)
    added.add_argument("-n", "--sequences", metavar="N", type=_positive, default=5, help="number of sequences (5)")


def _add_stats(verbs: Any) -> None:
    added = _verb(
        verbs,
        stats,
        "print figures of a corpus: ranges, quantiles, labels, lengths, padding",
        ["cntkio stats examples/alice/train.ctf", "cntkio stats --html digits.html examples/digits/train.ctf"],
    )
    _add_corpora(added)
    added.add_argument("--html", metavar="FILE", type=Path, help="also write a page with pictures to FILE")


def _add_check(verbs: Any) -> None:
    added = _verb(
        verbs,
        check,
        "report what is wrong with a corpus",
        [
            "cntkio check examples/digits/train.ctf",
            "cntkio check --output-format github --exit-zero examples/iris/iris.ctf",
        ],
        " Several files are several corpora; a pattern in quotes is one.",
    )
    _add_corpora(added)
    option = added.group("options of the report")
    option("--output-format", choices=OUTPUT_FORMATS, default="full", help="form of the report (full)")
    option("--statistics", action="store_true", help="print how many findings each rule has, not the findings")
    option(
        "--max-findings",
        metavar="N",
        type=_positive,
        default=100,
        help="number of findings to print (100); all are counted",
    )
    option("--ignore", metavar="CODE,...", action="append", help="rules to leave out; may be repeated")
    added.suggest("ignore", RULES)
    option("--exit-zero", action="store_true", help="exit with 0 even if there are findings")
    option(
        "--join", action="store_true", help="the corpora belong together: find what a source that joins them leaves out"
    )


def _add_rule(verbs: Any) -> None:
    added = _verb(verbs, rule, "explain a rule of check", ["cntkio rule bad-number", "cntkio rule"])
    added.add_argument("code", metavar="CODE", nargs="?", help="the code of the rule; by default all codes are listed")
    added.suggest("code", RULES)


def _add_vocab(verbs: Any) -> None:
    added = _verb(
        verbs,
        vocab,
        "print the words of one-hot samples that have comments",
        ["cntkio vocab examples/alice/train.ctf", "cntkio vocab --quiet examples/alice/train.ctf w"],
        " Such a sample is |S0 178:1 |# BOS. The exit status is 1 if no sample has a comment.",
    )
    added.add_argument("file", metavar="FILE", type=Path, help="a text")
    _add_remote_options(added)
    added.add_argument(
        "name",
        metavar="STREAM",
        nargs="?",
        help="print the words of this stream, one per line, in the order of their indices; by default list the streams",
    )


def _add_plan(verbs: Any) -> None:
    added = _verb(
        verbs,
        plan,
        "print how a corpus will be batched and shuffled, without reading data",
        [
            "cntkio plan --minibatch-size 256 examples/alice/train.ctf",
            "cntkio plan --chunk-size 50000 --window 2 --compare window=8 examples/alice/train.ctf",
            "cntkio plan --chunk-size 50000 --ranks 4 --rank 3 --step 7 examples/alice/train.ctf",
        ],
        " With --step, --position or --key, print which sequences a step delivers, or which steps deliver a sequence.",
    )
    _add_corpora(added)
    option = added.group("options of the plan")
    option(
        "--minibatch-size",
        metavar="SAMPLES",
        type=_positive,
        default=1024,
        help="samples of a minibatch, of all ranks together (1024)",
    )
    option("--window", metavar="CHUNKS", type=_whole, help="chunks to shuffle within; 0: in order (128)")
    option("--ranks", metavar="N", type=_positive, default=1, help="number of ranks (1)")
    option("--deal", choices=tuple(DEALS), default="cntk", help="how ranks share the data (cntk)")
    option("--seed", metavar="N", type=_whole, default=0, help="seed of the first sweep (0)")
    option(
        "--truncation-length",
        metavar="N",
        type=_whole,
        default=0,
        help="samples in each part of a truncated sequence (0: whole sequences)",
    )
    option("--compare", metavar="NAME=VALUE,...", action="append", help="also plan with these changes; may be repeated")
    option("--rank", metavar="N", type=_whole, default=0, help="the rank that the options below are about (0)")
    option("--step", metavar="N", type=_whole, help="print the sequences of this step, from 0, with file and line")
    option("--position", metavar="SAMPLES", type=_whole, help="print the step that passes this position")
    option("--key", metavar="KEY", help="print the steps of the first sweep that deliver this sequence")
    option("--html", metavar="FILE", type=Path, help="also write a page with pictures to FILE")
    option("--svg", metavar="FILE", type=Path, help="also write the picture of the order to FILE")


def _add_read(verbs: Any) -> None:
    added = _verb(
        verbs,
        read,
        "read a corpus in minibatches and print the throughput",
        ["cntkio read --minibatch-size 256 --sweeps 2 examples/digits/train.ctf"],
    )
    added.add_argument("file", metavar="FILE", type=Path, help=_CORPUS)
    _add_corpus_options(added)
    added.add_argument("--minibatch-size", metavar="SAMPLES", type=_positive, default=1024, help="in samples (1024)")
    added.add_argument("--sweeps", metavar="N", type=_positive, default=1, help="number of sweeps (1)")
    added.add_argument("--randomize", action="store_true", help="use CNTK's randomized order, not the file's order")
    added.add_argument(
        "arguments",
        metavar="SECTION | KEY=VALUE",
        nargs="*",
        help="if FILE is a configuration (.cntk): the readers to run, by default all, and values to change; the "
        "configuration then gives the minibatch size, and --sweeps counts its epochs",
    )


def _add_config(verbs: Any) -> None:
    added = _verb(
        verbs,
        config,
        "print the meaning of a configuration",
        ["cntkio config examples/digits/digits.cntk", "cntkio config --python examples/digits/digits.cntk Train"],
    )
    added.add_argument("file", metavar="FILE", type=Path, help="a configuration of CNTK")
    added.add_argument("arguments", metavar="SECTION | KEY=VALUE", nargs="*", help="as for `read`")
    added.add_argument("--python", action="store_true", help="print the equivalent Python program")


def _add_index(verbs: Any) -> None:
    summary = "write the index cache for a quick next start"
    added = _verb(verbs, index, summary, ["cntkio index examples/alice/train.ctf"])
    _add_corpora(added)


def _add_completion(verbs: Any, whole: Parser) -> None:
    added = _verb(
        verbs,
        completion,
        "print the completion of words for a shell",
        ["cntkio completion bash"],
        " Put the output where the shell finds it, such as ~/.local/share/bash-completion/completions/cntkio.",
    )
    added.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell")
    added.set_defaults(whole=whole)


def _verb(
    verbs: Any, run: Callable[[argparse.Namespace], int], summary: str, examples: Sequence[str], detail: str = ""
) -> Parser:
    added: Parser = verbs.add_parser(
        run.__name__,
        help=summary,
        description=f"{_sentence(summary)}{detail}",
        epilog="\n".join(["examples:", *(f"  $ {example}" for example in examples)]),
    )
    added.set_defaults(verb=run)
    added.add_argument("--json", action="store_true", help="print JSON, one object per line")
    added.add_argument("-q", "--quiet", action="store_true", help="print no progress and no warnings")
    return added


def _add_corpora(parser: Parser) -> None:
    parser.add_argument("file", metavar="FILE", type=Path, nargs="+", help=_CORPUS)
    _add_corpus_options(parser)


def _add_corpus_options(parser: Parser) -> None:
    option = parser.group("options of corpora")
    option(
        "--stream",
        metavar=_STREAM,
        type=_stream,
        action="append",
        help="a stream to read, dense by default; ALIAS is its name in the file if that differs; may be repeated; by "
        "default all streams are read, as the file shows them",
    )
    option("--max-errors", metavar="N", type=int, help="number of errors to forgive in a text; -1 forgives all")
    option("--skip-sequence-ids", action="store_true", help="each line of a text is a sequence, whatever its id")
    option("--strict", action="store_true", help="every warning is an error")
    option(
        "--chunk-size",
        metavar="BYTES",
        type=_positive,
        help="bytes of a text in a chunk (32 MiB; check, inspect, stats: 4 MiB)",
    )
    option("--keys", choices=get_args(KeysOf), help="keys of several texts: ids, or file and id (unique)")
    option("--prefix", metavar="TEXT", help="text to put before each path of a list of features")
    option(
        "--mapping",
        metavar="FILE",
        type=Path,
        help="for a label file: the file with the names of its labels; by default the names in the label file",
    )
    _add_remote_options(parser)


def _add_remote_options(parser: Parser) -> None:
    option = parser.group("options of remote stores")
    option(
        "--cache",
        metavar="FOLDER",
        help="keep the bytes that are read from remote files, and the text of large zstd frames, in this local folder",
    )
    option("--cache-limit", metavar="SIZE", help='largest size of the cache, such as "50 GB" (no limit)')
    option(
        "--remote",
        metavar="NAME=NUMBER",
        type=_remote_option,
        action="append",
        help="num_requests: how many requests run at the same time (8); num_retries: how often a request is repeated "
        "after a temporary error (10); timeout_in_seconds: of a request (60); may be repeated",
    )


# ---------------------------------------------------------------------------------------------------- convert


def _add_convert(verbs: Any) -> None:
    added = _verb(
        verbs,
        convert.convert,
        "convert a corpus from one format to another",
        [
            "cntkio convert examples/iris/iris.ctf iris.cbf",
            "cntkio convert examples/iris/iris.ctf iris.parquet",
            "cntkio convert ctf2cbf --precision double --input examples/iris/iris.ctf --output iris64.cbf",
        ],
        " The first bytes of IN decide its format; --to or the extension of OUT decides the format to write: .ctf and "
        ".txt, .cbf and .bin, .parquet and .pq, .arrow, .feather and .ipc.\n\nThe converters ctf2cbf, cbf2ctf, txt2ctf "
        "and uci2ctf have the options of CNTK's scripts: cntkio convert ctf2cbf --help.",
    )
    option = added.add_argument
    option("input", metavar="IN", type=Path, nargs="?", help=_CORPUS)
    option("output", metavar="OUT", type=Path, nargs="?", help="the file to write")
    option("--to", choices=convert.FORMATS, help="the format to write, whatever the extension of OUT")
    option("--input", metavar="FILE", type=Path, dest="input_file", help="the same as IN")
    option("--output", metavar="FILE", type=Path, dest="output_file", help="the same as OUT")
    option(
        "--flat",
        metavar="NAME",
        nargs="*",
        help="for Parquet and Arrow: streams with one sample in each sequence, to write without the list around the "
        "sample; all streams if no NAME is given",
    )
    option("--ids", metavar="NAME", nargs="+", help="for Parquet and Arrow: one-hot streams to write as class ids")
    option(
        "--one-hot",
        metavar="NAME:DIM",
        type=_one_hot,
        action="append",
        help="a column of class ids to read as a one-hot stream",
    )
    option("--key", metavar="NAME", help="the column of a table with the keys of the sequences (key)")
    option("--renumber", action="store_true", help="for text: number the sequences if their keys are not numbers")
    option(
        "--keys-file", metavar="FILE", type=Path, help="for text: number the sequences, and write their keys to FILE"
    )
    option(
        "--compress",
        choices=("none", "gzip", "zstd"),
        help="for text: its compression (as the extension of OUT says: .gz, .zst)",
    )
    _add_corpus_options(added)
    added.set_defaults(converter=None)


def _add_converters(verbs: Any) -> None:
    added: Parser = verbs.add_parser("convert", help="convert with the options of CNTK's scripts")
    added.set_defaults(verb=convert.convert)
    converters = added.add_subparsers(title="converters", metavar="CONVERTER", required=True)
    for add in (_add_ctf2cbf, _add_cbf2ctf, _add_txt2ctf, _add_uci2ctf):
        add(converters)


def _add_ctf2cbf(converters: Any) -> None:
    added = _converter(converters, convert.ctf2cbf, ["ctf2bin"], "convert text to the binary format")
    option = added.add_argument
    option("--input", metavar="FILE", type=Path, required=True, help="the text")
    option("--output", metavar="FILE", type=Path, required=True, help="the binary file")
    option(
        "--header",
        metavar="FILE",
        type=Path,
        help="a file with a line for each stream: name, name in the text, dense or sparse, dimension; by default the "
        "streams are as the text shows them",
    )
    option("--chunk_size", "--chunk-size", metavar="BYTES", type=int, default=32 << 20, help="size of a chunk (32 MiB)")
    option("--precision", choices=("float", "double"), default="float", help="precision of the values (float)")
    option("--layout", choices=("2.x", "documented"), default="2.x", help="layout of the file (2.x)")
    option("--max-errors", metavar="N", type=int, default=0, help="number of errors to forgive in the text (0)")
    option("--skip-sequence-ids", action="store_true", help="each line is a sequence")
    option("--strict", action="store_true", help="every warning is an error")


def _add_cbf2ctf(converters: Any) -> None:
    added = _converter(converters, convert.cbf2ctf, ["bin2ctf"], "convert the binary format to text")
    added.add_argument("--input", metavar="FILE", type=Path, required=True, help="the binary file, in either layout")
    added.add_argument("--output", metavar="FILE", type=Path, required=True, help="the text")


def _add_txt2ctf(converters: Any) -> None:
    summary = "convert lines of tokens to text, with a dictionary for each column"
    option = _converter(converters, convert.txt2ctf, [], summary).add_argument
    option(
        "--map",
        metavar="FILE",
        type=Path,
        nargs="+",
        required=True,
        help="a dictionary for each column, with one token per line",
    )
    option("--input", metavar="FILE", type=Path, nargs="*", help="the files to convert (standard input)")
    option("--output", metavar="FILE", type=Path, help="the text (standard output)")
    option("--annotated", metavar="BOOL", type=_truth, default=False, help="whether comments show the tokens (False)")
    option("--unk", metavar="TOKEN", help="the token that replaces tokens that are not in the dictionary")
    option("--names", metavar="NAME", nargs="+", help="names of the streams (S0 S1 ...)")
    option("--strict", action="store_true", help="a column without a token is an error")


def _add_uci2ctf(converters: Any) -> None:
    option = _converter(converters, convert.uci2ctf, [], "convert columns of numbers to text").add_argument
    option("-in", "--input_file", metavar="FILE", type=Path, required=True, help="the file to convert")
    option("-fs", "--features_start", metavar="COLUMN", type=int, required=True, help="the first feature, from 0")
    option("-fd", "--features_dim", metavar="N", type=int, required=True, help="number of features")
    types = ("Category", "Regression", "None")
    option("-lt", "--label_type", choices=types, default="Category", help="type of the labels (Category)")
    option("-ls", "--labels_start", metavar="COLUMN", type=int, help="the first label, from 0")
    option("-ld", "--labels_dim", metavar="N", type=int, default=1, help="number of columns of labels (1)")
    option("-nl", "--num_labels", metavar="N", type=int, help="number of categories")
    option("--mapping_file", metavar="FILE", type=Path, help="names of the categories, one per line")
    option("-out", "--output_file", metavar="FILE", type=Path, help="the text (the input's name with _cntk_text)")
    option("--sparse-labels", action="store_true", help="write a category as index:1")
    option("--delimiter", metavar="CHAR", help="separator of columns (white space)")
    option("--skip-header", action="store_true", help="skip the first line")


def _converter(converters: Any, run: Callable[..., Path | None], aliases: list[str], summary: str) -> Parser:
    added: Parser = converters.add_parser(run.__name__, aliases=aliases, help=summary, description=_sentence(summary))
    added.set_defaults(converter=run)
    added.add_argument("--json", action="store_true", help="print JSON, one object per line")
    added.add_argument("-q", "--quiet", action="store_true", help="print no progress and no warnings")
    return added


_CONVERTERS = {"ctf2cbf", "ctf2bin", "cbf2ctf", "bin2ctf", "txt2ctf", "uci2ctf"}


def _sentence(summary: str) -> str:
    return f"{summary[0].upper()}{summary[1:]}."


# ------------------------------------------------------------------------------------------- types of arguments


def _stream(text: str) -> tuple[str, Any]:
    """Read one `--stream NAME:DIM[:sparse|:dense][:ALIAS]`."""
    name, colon, rest = text.partition(":")
    size, _, rest = rest.partition(":")
    form, _, alias = rest.partition(":")
    if form not in ("sparse", "dense"):
        form, alias = "dense", rest
    if not name or not colon or not size.isdecimal():
        raise ArgumentTypeError(f"'{text}' is not {_STREAM}, such as words:1323:sparse:w")
    return name, StreamDef(field=alias or name, shape=int(size), is_sparse=form == "sparse")


def _remote_option(text: str) -> tuple[str, int]:
    """Read one `--remote NAME=NUMBER`."""
    name, _, value = text.partition("=")
    if name not in REMOTE_NUMBERS or not value.isdecimal():
        raise ArgumentTypeError(f"'{text}' is not NAME=NUMBER, where NAME is {', '.join(REMOTE_NUMBERS)}")
    return name, int(value)


def _one_hot(text: str) -> tuple[str, int]:
    """Read one `--one-hot NAME:DIM`."""
    name, _, dim = text.rpartition(":")
    if not name or not dim.isdecimal():
        raise ArgumentTypeError(f"'{text}' is not NAME:DIM, such as words:943")
    return name, int(dim)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise ArgumentTypeError(f"'{text}' is not a positive whole number")
    return int(text)


def _whole(text: str) -> int:
    if not text.isdecimal():
        raise ArgumentTypeError(f"'{text}' is not a whole number")
    return int(text)


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "false", "1", "0"):
        raise ArgumentTypeError(f"'{text}' is neither True nor False")
    return text.lower() in ("true", "1")
