"""The verb `vocab`: words of one-hot streams, from the comments of a text."""

from __future__ import annotations

from argparse import Namespace

from cntkio.cli.corpora import refuse_remote_options
from cntkio.cli.show import BAD_DATA, FINE, complain, show, show_json
from cntkio.corpora import inputs
from cntkio.displays import counted
from cntkio.errors import ConfigError
from cntkio.formats.ctf import Vocabulary, read_vocabularies
from cntkio.hints import did_you_mean


def vocab(options: Namespace) -> int:
    """Print the words of a stream, in the order of their indices; without a stream, list the streams that have words.

    Raises:
        ConfigError: The file is not a text, or no comments follow the samples of the stream.
        OSError: The file cannot be read.
    """
    with inputs([options.file]) as files:
        refuse_remote_options(options, files)
        (file,) = files
        if file.kind.form != "ctf":
            raise ConfigError(f"{file.name} is {file.kind.noun}; comments are in texts", key="file")
        found = read_vocabularies(file.names)
    name = options.name
    if name is not None and name not in found:
        known = f"expected one of: {', '.join(found)}" if found else "no stream has such comments"
        raise ConfigError(f"no comments follow the samples of {name!r}; {known}{did_you_mean(name, found)}", key="name")
    shown = found if name is None else {name: found[name]}
    if options.json:
        show_json({one: vars(words) for one, words in shown.items()})
    elif name is None:
        for one, words in shown.items():
            show(f"{one}  {_summary(words)}")
    else:
        for index in range(max(shown[name]) + 1):
            show(shown[name].get(index, ""))
    if not shown and not options.quiet:
        complain(f"{file.name}: no comment follows a one-hot sample; expected a comment, as in |S0 178:1 |# BOS")
    for one, words in shown.items() if name is not None and not options.quiet else ():
        if words.num_contradictions:
            contradictions = counted(words.num_contradictions, "sample")
            complain(f"stream {one!r}: {contradictions} of {words.num_samples:,} have another word; --json lists them")
    return FINE if shown else BAD_DATA


def _summary(words: Vocabulary) -> str:
    last = max(words)
    return (
        f"{counted(len(words), 'word')}, indices to {last:,}, {words.num_samples:,} samples, "
        f"{counted(words.num_contradictions, 'contradiction')}"
    )
