"""The arguments of the command: a parser for each verb, with examples in its help.

A parsed namespace has the function of its verb as `verb` and, for a script of CNTK, its function as `script`. Options
that several verbs have stand once, in the help of the command.
"""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np

from cntkio._core import __version__
from cntkio.arguments import COMMAND, near_names
from cntkio.cli import convert
from cntkio.cli.bench import bench, config, index
from cntkio.cli.check import OUTPUT_FORMATS, check, rule
from cntkio.cli.diff import diff
from cntkio.cli.inspect import head, inspect, vocab
from cntkio.cli.parsing import Parser, completion
from cntkio.cli.plan import DEALS, Shares, explain, limit_of, plan, weights_in
from cntkio.formats.contract import KeysOf
from cntkio.storage.remote import REMOTE_NUMBERS
from cntkio.streams import StreamDef
from cntkio.survey.rules import RULES

_Option = Callable[..., Any]  # `Parser.add_argument`
_Verb = Callable[..., _Option]  # `_verb`, with the verbs
_SECTION = "SECTION | KEY=VALUE"
_WORDS_OF_CONFIGURATION = f"FILE [{_SECTION} ...]"
_STREAM = "NAME:DIM[:sparse][:ALIAS]"
_CORPUS = "a corpus of any kind; - for standard input; in quotes, a pattern of files that are one corpus"


def parser(arguments: Sequence[str] = ()) -> Parser:
    """Return the parser of the command, with the verb that the arguments name or, if they name none, all verbs.

    The arguments also decide which parser `convert` gets, as CNTK's scripts have arguments of their own.
    """
    named = [word for word in arguments[:1] if word in _VERBS and word != "completion"]  # which prints all verbs
    whole = Parser(
        prog="cntkio",
        usage="cntkio VERB [options] FILE ...",
        description="Inspect, check, convert and read corpora in CNTK's formats.",
        epilog="" if named else _help_of_common_options(),
    )
    whole.add_argument("--version", action="version", version=f"cntkio {__version__}")
    # `completion` describes the whole parser, and gets it with its options. Only the scripts of CNTK set `script`.
    whole.set_defaults(whole=whole, script=None)
    title = "verbs (cntkio VERB --help shows examples)"
    verbs = whole.add_subparsers(title=title, metavar="VERB", required=True, prog="cntkio")
    if named == ["convert"] and not {"txt2ctf", "uci2ctf"}.isdisjoint(arguments[1:2]):
        _add_scripts(verbs)
        return whole
    for name in named or _VERBS:
        _VERBS[name](partial(_verb, verbs))
    return whole


# ------------------------------------------------------------------------------------------------------ verbs


def _verb(
    verbs: Any, run: Callable[..., int], summary: str, *examples: str, detail: str = "", words: str = "FILE ..."
) -> _Option:
    """Add the parser of a verb, and return the method that adds an argument to it.

    The function of the verb has its name. Its description is the summary and the detail; after its name come the words.
    """
    added: Parser = verbs.add_parser(
        run.__name__,
        usage=f"cntkio {run.__name__} [options] {words}",
        help=summary,
        description=f"{_sentence(summary)}{detail}",
        epilog="\n".join(["more options: cntkio --help", "", "examples:", *(f"  $ {each}" for each in examples)]),
    )
    # The main program calls the verb by this default, and needs no table of its own.
    added.set_defaults(verb=run)
    _add_output_options(partial(added.add_argument, is_common=True))
    return added.add_argument


def _add_inspect(verb: _Verb) -> None:
    option = verb(
        inspect, "print the contents and the figures of a corpus",
        "cntkio inspect examples/digits/train.ctf", "cntkio inspect --quiet --html iris.html examples/iris/iris.ctf",
    )  # fmt: skip
    _add_corpora(option)
    option("--html", type=Path, help="also write a page with samples, figures and pictures")
    meaning = "write a configuration that reads the corpus, and print the equivalent Python program"
    option("--write-config", type=Path, help=meaning)


def _add_head(verb: _Verb) -> None:
    option = verb(
        head, "print the first sequences, or certain sequences, with their words",
        "cntkio head -n 2 examples/alice/train.ctf", "gzip -c examples/iris/iris.ctf | cntkio head -n 1 -",
    )  # fmt: skip
    _add_corpora(option)
    option("-n", "--sequences", type=_positive, default=5, help="number of sequences (5)")
    option("--at", type=_whole, help="begin with the sequence of this index, from 0")
    option("--key", metavar="KEY", dest="sequence_key", help="print the sequences with this key")


def _add_check(verb: _Verb) -> None:
    option = verb(
        check, "report what is wrong with a corpus",
        "cntkio check examples/digits/train.ctf",
        "cntkio check --output-format github --exit-zero examples/iris/iris.ctf",
        detail=" Several files are several corpora; a pattern in quotes is one.",
    )  # fmt: skip
    _add_corpora(option)
    option("--output-format", choices=OUTPUT_FORMATS, default="full", help="form of the report (full)")
    option("--statistics", action="store_true", help="print how many findings each rule has, not the findings")
    option("--max-findings", type=_positive, default=100, help="number of findings to print (100); all are counted")
    option("--ignore", metavar="CODE,...", action="append", suggested=RULES, help="rules to leave out; may be repeated")
    option("--exit-zero", action="store_true", help="exit with 0 even if there are findings")
    meaning = "the corpora belong together: find what a source that joins them leaves out"
    option("--join", action="store_true", help=meaning)


def _add_convert(verb: _Verb) -> None:
    option = verb(
        convert.convert, "convert a corpus from one format to another, or select from it",
        "cntkio convert examples/iris/iris.ctf iris.cbf",
        "cntkio convert --split 0.9,0.1 examples/iris/iris.ctf train.ctf test.ctf",
        detail=" The first bytes of IN decide its format, and --to or the extension of OUT the format to write. "
        "txt2ctf and uci2ctf have the options of CNTK's scripts.",
        words="IN OUT",
    )  # fmt: skip
    # Any number, because `--input` and `--output` may give one of the files or both; the verb counts them.
    option("files", metavar="IN OUT", type=Path, nargs="*", help="the files to read and to write")
    option("--to", choices=convert.FORMATS, metavar="FORMAT", help=f"to write: {', '.join(convert.FORMATS)}")
    option("--input", type=Path, dest="input_file", help="the same as IN")
    option("--output", type=Path, dest="output_file", help="the same as OUT")
    option("--sample", metavar="N", type=_amount, help="write N random sequences; below 1: a share")
    option("--split", metavar="SHARE,...", type=_shares, help="divide the sequences among several OUT")
    option("--shuffle", action="store_true", help="write the sequences in a random order")
    option("--merge", action="store_true", help="write several IN, one after the other")
    option("--seed", type=_whole, default=0, help="seed of the random choices (0)")
    # Without a name it means all streams, so the list may be empty.
    option("--flat", metavar="NAME", nargs="*", help="tables: write single samples without lists")
    option("--ids", metavar="NAME", nargs="+", help="tables: write one-hot streams as class ids")
    for name in ("one_hot", "key", "dtype"):
        _add_reading_option(option, name)
    option("--renumber", action="store_true", help="text: number the sequences")
    option("--keys-file", type=Path, help="text: number the sequences, list their keys")
    option("--compress", metavar="FORM", choices=("none", "gzip", "zstd"), help="text: none, gzip or zstd")
    option("--num-files", type=_whole, help="write N files: OUT has a * for their numbers")
    meaning = "write files of up to so many bytes of samples: OUT has a *"
    option("--max-file-size", metavar="BYTES", type=_whole, help=meaning)
    option("--header", type=Path, help="the streams, as for ctf2bin of CNTK")
    layouts = ("2.x", "documented")
    option("--layout", metavar="NAME", choices=layouts, default="2.x", help="cbf: 2.x or documented (2.x)")
    _add_corpus_options(option)


def _add_diff(verb: _Verb) -> None:
    option = verb(
        diff, "compare two corpora: streams, keys, lengths, values",
        "cntkio diff examples/iris/iris.ctf examples/iris/iris.ctf",
        detail=" The exit status is 0 if they are equal, and 1 if they differ.", words="FILE FILE",
    )  # fmt: skip
    option("file", type=Path, nargs=2, help="the corpora; see cntkio --help")
    _add_corpus_options(option)
    option("--by", choices=("key", "index"), help="what sequences are compared by (key, if they have some in common)")
    # 0 is allowed: then only the numbers of differences are printed.
    option("-n", "--differences", type=_whole, default=3, help="number of differences to print (3)")


def _add_plan(verb: _Verb) -> None:
    option = verb(
        plan, "print how a corpus will be batched and shuffled, without reading data",
        "cntkio plan --minibatch-size 256 examples/alice/train.ctf",
        "cntkio plan --compare minibatch-size=256 examples/alice/train.ctf",
    )  # fmt: skip
    _add_corpora(option)
    _add_setting(option)
    option("--compare", metavar="CHANGES", action="append", help="also plan with NAME=VALUE,...; may be repeated")
    option("--html", type=Path, help="also write a page with pictures")
    option("--svg", type=Path, help="also write the picture of the order")
    option("--table", type=Path, help="also write the steps: .json, .parquet or .arrow")
    option("--sweeps", type=_positive, default=1, help="sweeps in the table, or of a mixture (1)")


def _add_explain(verb: _Verb) -> None:
    option = verb(
        explain, "print which sequences a step delivers, or which steps deliver a sequence",
        "cntkio explain --minibatch-size 256 --steps 7:9 examples/alice/train.ctf",
        "cntkio explain --minibatch-size 256 --key 239 examples/alice/train.ctf",
    )  # fmt: skip
    _add_corpora(option)
    _add_setting(option)
    option("--rank", type=_whole, default=0, help="the rank to explain (0)")
    option("--step", type=_whole, help="print the sequences of this step, from 0")
    option("--steps", metavar="A:B", help="print the sequences of the steps from A to before B")
    option("--position", metavar="SAMPLES", type=_whole, help="print the step that passes this position")
    meaning = "print the steps of the first sweep that deliver it"
    option("--key", metavar="KEY", dest="sequence_key", help=meaning)


def _add_setting(option: _Option) -> None:
    meaning = "of all ranks; or a table, 0:4096,10000:8192 (1024)"
    option("--minibatch-size", metavar="N", type=partial(_limit, least=1), default=1024, help=meaning)
    option("--window", metavar="CHUNKS", type=_whole, help="chunks to shuffle within; 0: in order (128)")
    option("--ranks", type=_positive, default=1, help="number of ranks (1)")
    meaning = f"how ranks share data: {', '.join(DEALS)} (cntk)"
    option("--deal", metavar="HOW", choices=tuple(DEALS), default="cntk", help=meaning)
    option("--lanes", type=_whole, default=0, help="with --deal global: number of lanes (0: none)")
    option("--order", choices=("cntk", "keyed"), default="cntk", help="order in a window (cntk)")
    option("--seed", type=_whole, default=0, help="seed of the first sweep (0)")
    option("--truncation-length", type=_whole, default=0, help="samples of a part of a sequence (0: whole)")
    option("--padded", metavar="SAMPLES", type=_limit, default=0, help="a budget: samples after padding (0: no limit)")
    option("--pool", metavar="SEQUENCES", type=_whole, default=0, help="a budget: sequences of a pool (0: no pools)")
    option("--rows", type=_limit, default=0, help="a budget: packed rows (0: not packed)")
    option("--row-length", metavar="SAMPLES", type=_whole, default=0, help="a budget: samples of a row")
    option("--max-length", metavar="SAMPLES", type=_limit, default=0, help="a budget: drop longer sequences (0: none)")
    meaning = "between values of a table: linear or steps (linear)"
    option("--between", metavar="HOW", choices=("linear", "steps"), default="linear", help=meaning)
    meaning = "attention: ranks get equal costs, with --deal global"
    option("--balance", metavar="KIND", choices=("attention",), default="", help=meaning)
    option("--cost", metavar="A:B", default="", help="with --balance: A a sample, B a squared length (0:1)")
    option("--leave-out", metavar="FILE[@P]", default="", help="leave out the keys in FILE, from position P on (0)")
    option("--weights", metavar="W,...", type=_weights, default={}, help="mix the FILEs: 3,1 or 0:3,1,8000:1,1")


def _add_config(verb: _Verb) -> None:
    option = verb(
        config, "print the meaning of a configuration",
        "cntkio config examples/digits/digits.cntk", "cntkio config --python examples/digits/digits.cntk Train",
        words=_WORDS_OF_CONFIGURATION,
    )  # fmt: skip
    option("file", type=Path, help="a configuration of CNTK")
    option("arguments", metavar=_SECTION, nargs="*", help="the readers to print, and values to change")
    option("--python", action="store_true", help="print the equivalent Python program")


def _add_index(verb: _Verb) -> None:
    option = verb(index, "write the index cache for a quick next start", "cntkio index examples/alice/train.ctf")
    _add_corpora(option)
    meaning = "write the caches of files in a store into this object, for Remote(manifest=URL)"
    option("--manifest", metavar="URL", help=meaning)
    option("--part", metavar="K/N", type=_part, help="index only part K of N of a large text")
    option("--join", metavar="N", type=_positive, help="join the N parts that --part has made into the index")


def _add_bench(verb: _Verb) -> None:
    option = verb(
        bench, "read a corpus in minibatches and print the throughput",
        "cntkio bench --minibatch-size 256 --sweeps 2 examples/digits/train.ctf",
        words=_WORDS_OF_CONFIGURATION,
    )  # fmt: skip
    option("file", type=Path, help=_CORPUS)
    _add_corpus_options(option)
    option("--minibatch-size", metavar="SAMPLES", type=_positive, default=1024, help="in samples (1024)")
    option("--sweeps", type=_positive, default=1, help="number of sweeps (1)")
    option("--randomize", action="store_true", help="use CNTK's randomized order, not the file's order")
    meaning = (
        "if FILE is a configuration (.cntk): the readers to run, by default all, and values to change; the "
        "configuration then gives the minibatch size, and --sweeps counts its epochs"
    )
    option("arguments", metavar=_SECTION, nargs="*", help=meaning)


def _add_rule(verb: _Verb) -> None:
    option = verb(rule, "explain a rule of check", "cntkio rule bad-number", "cntkio rule", words="[CODE]")
    meaning = "the code of the rule; by default all codes are listed"
    option("code", metavar="CODE", nargs="?", suggested=RULES, help=meaning)


def _add_vocab(verb: _Verb) -> None:
    option = verb(
        vocab, "print the words of one-hot samples that have comments",
        "cntkio vocab examples/alice/train.ctf", "cntkio vocab --quiet examples/alice/train.ctf w",
        detail=" Such a sample is |S0 178:1 |# BOS. The exit status is 1 if no sample has a comment.",
        words="FILE [STREAM]",
    )  # fmt: skip
    option("file", type=Path, help="a text")
    # The options of streams and chunks are left out: the words are found in the text itself.
    _add_remote_options(partial(option, is_common=True))
    meaning = "print the words of this stream, one per line, in the order of their indices; by default list the streams"
    option("name", metavar="STREAM", nargs="?", help=meaning)


def _add_completion(verb: _Verb) -> None:
    option = verb(
        completion, "print the completion of words for a shell",
        "cntkio completion bash",
        detail=" Put the output where the shell finds it, such as ~/.local/share/bash-completion/completions/cntkio.",
        words="SHELL",
    )  # fmt: skip
    option("shell", choices=("bash", "zsh", "fish"), help="the shell")


_VERBS: dict[str, Callable[[_Verb], None]] = {
    "inspect": _add_inspect, "head": _add_head, "check": _add_check, "convert": _add_convert, "diff": _add_diff,
    "plan": _add_plan, "explain": _add_explain, "config": _add_config, "index": _add_index, "bench": _add_bench,
    "rule": _add_rule, "vocab": _add_vocab, "completion": _add_completion,
}  # fmt: skip


# ------------------------------------------------------------------------------------------------------ options


def _help_of_common_options() -> str:
    """Return the help of the options that several verbs have."""
    common = Parser(prog="", add_help=False)
    for add in (_add_output_options, _add_reading_options, _add_remote_options):
        add(common.add_argument)
    # Only line ends are stripped, not blanks: the first line keeps its indentation.
    return f"options of corpora:\n{common.format_help().partition('options:')[2].strip(chr(10))}"


def _add_output_options(option: _Option) -> None:
    option("--json", action="store_true", help="print JSON, one object per line")
    option("-q", "--quiet", action="store_true", help="print no progress and no warnings")


def _add_corpora(option: _Option) -> None:
    option("file", type=Path, nargs="+", help=_CORPUS)
    _add_corpus_options(option)


def _add_corpus_options(option: _Option) -> None:
    _add_reading_options(partial(option, is_common=True))
    _add_remote_options(partial(option, is_common=True))


def _add_reading_options(option: _Option) -> None:
    text = ("streams", "max_errors", "skip_sequence_ids", "strict", "chunk_size_in_bytes")
    for name in (*text, "keys", "prefix", "labels", "mapping"):
        _add_reading_option(option, name)


def _add_reading_option(option: _Option, name: str) -> None:
    others = ["--chunk_size"] if name == "chunk_size_in_bytes" else []  # as in CNTK's ctf2bin.py
    option(COMMAND.flag(name), *others, dest=name, **_READING[name])


def _add_remote_options(option: _Option) -> None:
    meaning = "keep the bytes that are read from remote files, and the text of large zstd frames, in this local folder"
    option("--cache", metavar="FOLDER", help=meaning)
    option("--cache-limit", metavar="SIZE", help='largest size of the cache, such as "50 GB" (no limit)')
    meaning = (
        "num_requests: how many requests run at the same time (8); num_retries: how often a request is repeated "
        "after a temporary error (10); timeout_in_seconds: of a request (60); may be repeated"
    )
    option("--remote", metavar="NAME=NUMBER", type=_remote_option, action="append", help=meaning)


# ------------------------------------------------------------------------------------------------- CNTK's scripts


def _add_scripts(verbs: Any) -> None:
    added: Parser = verbs.add_parser("convert", help="convert with the options of CNTK's scripts")
    added.set_defaults(verb=convert.convert)
    scripts = added.add_subparsers(title="scripts", metavar="SCRIPT", required=True)
    summary = "convert lines of tokens to text, with a dictionary for each column"
    _add_options_of_txt2ctf(_script(scripts, convert.txt2ctf, summary))
    _add_options_of_uci2ctf(_script(scripts, convert.uci2ctf, "convert columns of numbers to text"))


def _add_options_of_txt2ctf(option: _Option) -> None:
    meaning = "a dictionary for each column, with one token per line"
    option("--map", type=Path, nargs="+", required=True, help=meaning)
    option("--input", type=Path, nargs="*", help="the files to convert (standard input)")
    option("--output", type=Path, help="the text (standard output)")
    # CNTK's script takes the word True or False after this option, so it is not a flag here either.
    option("--annotated", metavar="BOOL", type=_truth, default=False, help="whether comments show the tokens (False)")
    option("--unk", metavar="TOKEN", help="the token that replaces tokens that are not in the dictionary")
    option("--names", metavar="NAME", nargs="+", help="names of the streams (S0 S1 ...)")
    option("--strict", action="store_true", help="a column without a token is an error")


def _add_options_of_uci2ctf(option: _Option) -> None:
    # CNTK's script has the options with one hyphen, in this spelling.
    option("-in", "--input_file", type=Path, required=True, help="the file to convert")
    option("-fs", "--features_start", metavar="COLUMN", type=int, required=True, help="the first feature, from 0")
    option("-fd", "--features_dim", type=int, required=True, help="number of features")
    types = ("Category", "Regression", "None")
    option("-lt", "--label_type", choices=types, default="Category", help="type of the labels (Category)")
    option("-ls", "--labels_start", metavar="COLUMN", type=int, help="the first label, from 0")
    option("-ld", "--labels_dim", type=int, default=1, help="number of columns of labels (1)")
    option("-nl", "--num_labels", type=int, help="number of categories")
    option("--mapping_file", type=Path, help="names of the categories, one per line")
    option("-out", "--output_file", type=Path, help="the text (the input's name with _cntk_text)")
    option("--sparse-labels", action="store_true", help="write a category as index:1")
    option("--delimiter", metavar="CHAR", help="separator of columns (white space)")
    option("--skip-header", action="store_true", help="skip the first line")


def _script(scripts: Any, run: Callable[..., Path | None], summary: str) -> _Option:
    added: Parser = scripts.add_parser(run.__name__, help=summary, description=_sentence(summary))
    added.set_defaults(script=run)
    _add_output_options(added.add_argument)
    return added.add_argument


def _sentence(summary: str) -> str:
    return f"{summary[0].upper()}{summary[1:]}."


# ------------------------------------------------------------------------------------------- types of arguments


def _stream(text: str) -> tuple[str, Any]:
    """Read one `--stream NAME:DIM[:sparse|:dense][:ALIAS]`."""
    name, colon, rest = text.partition(":")
    size, _, rest = rest.partition(":")
    form, _, alias = rest.partition(":")
    # Without a form, the rest is the alias, colons included.
    if form not in ("sparse", "dense"):
        form, alias = "dense", rest
    # argparse shows the message of this error; of a ValueError it would show only the name of the function.
    if not name or not colon or not size.isdecimal():
        raise ArgumentTypeError(f"'{text}' is not {_STREAM}, such as words:1323:sparse:w")
    near = near_names(alias, ("sparse", "dense")) if rest == alias else []
    if near and alias[0].lower() == near[0][0]:
        what = f"'{text}' has '{alias}'; did you mean '{near[0]}'?"
        raise ArgumentTypeError(f"{what} If it is the name in the file, write {name}:{size}:dense:{alias}")
    return name, StreamDef(field=alias or name, shape=int(size), is_sparse=form == "sparse")


def _remote_option(text: str) -> tuple[str, int]:
    """Read one `--remote NAME=NUMBER`."""
    name, _, value = text.partition("=")
    if name not in REMOTE_NUMBERS or not value.isdecimal():
        raise ArgumentTypeError(f"'{text}' is not NAME=NUMBER, where NAME is {', '.join(REMOTE_NUMBERS)}")
    return name, int(value)


def _one_hot(text: str) -> tuple[str, int]:
    """Read one `--one-hot NAME:DIM`."""
    # From the end, because the name of a column may contain colons.
    name, _, dim = text.rpartition(":")
    if not name or not dim.isdecimal():
        raise ArgumentTypeError(f"'{text}' is not NAME:DIM, such as words:943")
    return name, int(dim)


def _whole(text: str, kind: str = "whole number", least: int = 0) -> int:
    # `int` alone would also accept signs, blanks and underscores.
    if not text.isdecimal() or int(text) < least:
        raise ArgumentTypeError(f"'{text}' is not a {kind}")
    return int(text)


_positive = partial(_whole, kind="positive whole number", least=1)


def _part(text: str) -> tuple[int, int]:
    """Read one `--part K/N`."""
    number, slash, count = text.partition("/")
    if not (slash and number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise ArgumentTypeError(f"'{text}' is not K/N, such as 2/8")
    return int(number), int(count)


def _limit(text: str, least: int = 0) -> int | dict[int, int]:
    """Read a whole number, or a table of whole numbers by position."""
    try:
        return _whole(text, least=least) if text.isdecimal() else limit_of(text)
    except ValueError:
        message = f"'{text}' is not a whole number, or a table such as 0:4096,10000:8192"
        raise ArgumentTypeError(message) from None


def _weights(text: str) -> Shares:
    try:
        return weights_in(text)
    except ValueError:
        message = f"'{text}' is not a weight for each FILE, such as 3,1, or a table such as 0:3,1,8000:1,1"
        raise ArgumentTypeError(message) from None


def _amount(text: str) -> int | float:
    """Read a number of sequences, or a share between 0 and 1."""
    # 1 is a number of sequences: as a share it would select everything.
    if text.isdecimal() and int(text) > 0:
        return int(text)
    return _share(text, "a number of sequences or a share between 0 and 1, such as 100 or 0.01")


def _shares(text: str) -> list[float]:
    """Read one `--split SHARE,SHARE,...`."""
    return [_share(share, "a share between 0 and 1, as in 0.9,0.1") for share in text.split(",")]


def _share(text: str, expected: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    # Written so that it also refuses NaN, for which every comparison is false.
    if not 0 < share < 1:
        raise ArgumentTypeError(f"'{text}' is not {expected}")
    return share


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "false", "1", "0"):
        raise ArgumentTypeError(f"'{text}' is neither True nor False")
    return text.lower() in ("true", "1")


def _precision(text: str) -> type[np.floating[Any]]:
    if text not in _PRECISIONS:
        raise ArgumentTypeError(f"'{text}' is not {' or '.join(_PRECISIONS)}")
    return _PRECISIONS[text]


_PRECISIONS: dict[str, type[np.floating[Any]]] = {"float": np.float32, "double": np.float64}
_READING: dict[str, dict[str, Any]] = {
    "streams": {
        "metavar": _STREAM, "type": _stream, "action": "append", "help": "a stream to read, dense by default; ALIAS is "
        "its name in the file if that differs; may be repeated; by default all streams are read, as the file shows "
        "them",
    },
    "max_errors": {"type": int, "help": "number of errors to forgive in a text; -1 forgives all"},
    "skip_sequence_ids": {"action": "store_true", "help": "each line of a text is a sequence, whatever its id"},
    "strict": {"action": "store_true", "help": "every warning is an error"},
    "chunk_size_in_bytes": {
        "metavar": "BYTES", "type": _positive,
        "help": "bytes of a text in a chunk, also of a binary corpus that is written (32 MiB; check: 16 MiB)",
    },
    "keys": {"choices": get_args(KeysOf), "help": "keys of several texts: ids, or file and id (unique)"},
    "prefix": {"metavar": "TEXT", "help": "text to put before each path of a list of features"},
    "labels": {"type": Path, "help": "the label file (MLF) that is joined with a list of features"},
    "mapping": {
        "type": Path,
        "help": "for labels: the file with the names of the classes; by default the names in the label file",
    },
    "one_hot": {
        "metavar": "NAME:DIM", "type": _one_hot, "action": "append", "help": "tables: a column of class ids",
    },
    "key": {"metavar": "NAME", "help": "tables: the column with the keys (key)"},
    "dtype": {
        "metavar": "TYPE", "type": _precision, "suggested": tuple(_PRECISIONS),
        "help": "values of texts, Kaldi and tables: float or double",
    },
}  # fmt: skip
"""The options of `cntkio.formats.contract.Reading` in the command: arguments of `Parser.add_argument`, by name."""
