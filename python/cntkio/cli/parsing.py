"""The parser, and the completion of shells that its tables of arguments generate."""

from __future__ import annotations

import argparse
import re
import shlex
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from cntkio.arguments import did_you_mean, there_are
from cntkio.cli.show import FINE, show_json


class HelpFormatter(argparse.HelpFormatter):
    """Formatter of help that keeps the lines of examples, and prints the meaning of each verb next to the verb."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        has_own_lines = text.startswith(("more options:", "options of corpora:"))
        return text if has_own_lines else super()._fill_text(text, width, indent)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        text = super()._format_action_invocation(action)
        # argparse makes the first column wide enough for this text, but not for the verbs, which are indented more.
        return text.ljust(max(map(len, action.choices or ())) + 4) if action.nargs == argparse.PARSER else text


class Parser(ArgumentParser):
    """A parser that can list its arguments and its verbs.

    Attributes:
        arguments: The arguments, in order, except for verbs and `--help`.
        verbs: The parser of each verb, by name.
    """

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        # Set before argparse's own `__init__`, which adds `--help` with `add_argument`.
        self.arguments: list[Argument] = []
        self.verbs: Mapping[str, Parser] = {}
        self._is_parsing = False
        super().__init__(*arguments, **{"formatter_class": HelpFormatter, **keywords})

    def add_argument(
        self, *names: Any, suggested: Iterable[str] = (), is_common: bool = False, **keywords: Any
    ) -> argparse.Action:
        """Add an argument, as `ArgumentParser` does. A value that is a path is a FILE, any other value an N.

        Args:
            suggested: Values that shells complete, if it may have other values, too.
            is_common: Whether several verbs have the argument, and the help of the verb therefore leaves it out.
        """
        if "type" in keywords:
            keywords.setdefault("metavar", "FILE" if keywords["type"] is Path else "N")
        meaning = keywords.get("help", "")
        if is_common:
            keywords["help"] = argparse.SUPPRESS
        added = super().add_argument(*names, **keywords)
        options, choices = tuple(added.option_strings), tuple(map(str, added.choices or suggested))
        value = "" if added.nargs == 0 else str(added.metavar or "{" + ",".join(choices) + "}")
        is_repeated, is_optional = added.nargs in ("*", "+"), added.nargs in ("*", "?")
        if added.dest != "help":
            self.arguments.append(Argument(options, value, meaning, choices, is_repeated, is_optional, is_common))
        return added

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse arguments. Options may appear anywhere between the words of a verb."""
        # argparse cannot intermix the arguments of a parser with verbs. Its method for intermixing calls this method.
        if self.verbs or self._is_parsing:
            return super().parse_known_args(args, namespace)
        self._is_parsing = True
        try:
            parsed, unknown = self.parse_known_intermixed_args(args, namespace)
        finally:
            self._is_parsing = False
        if unknown:
            known = [option for argument in self.arguments for option in argument.options]
            self.error(f"unrecognized arguments: {' '.join(unknown)}{did_you_mean(unknown[0], known)}")
        return parsed, unknown

    def error(self, message: str) -> NoReturn:
        """End the process with status 2, a message, the nearest verb if a verb is unknown, and the way to the help."""
        # argparse's message lists all verbs instead of the nearest.
        if match := re.match(r"argument VERB: invalid choice: '(.*?)'", message):
            message = f"there is no {match[1]!r}{there_are(match[1], self.verbs)}"
        self.exit(2, f"{self.prog}: error: {message}\nsee {self.prog} --help\n")

    def add_subparsers(self, **keywords: Any) -> Any:
        """Add verbs, as `ArgumentParser` does."""
        added = super().add_subparsers(**keywords)
        self.verbs = added.choices
        return added


class Argument(NamedTuple):
    """An argument of a verb.

    Attributes:
        options: Its options, such as `-n` and `--sequences`; empty: a positional argument.
        metavar: Name of its value; empty: it has none.
        choices: Possible values, or values that shells complete; empty: any value.
        is_common: Whether several verbs have it.
    """

    options: tuple[str, ...]
    metavar: str
    help: str
    choices: tuple[str, ...]
    is_repeated: bool
    is_optional: bool
    is_common: bool


# ------------------------------------------------------------------------------------------------------- completion

_Verbs = Mapping[str, Parser]


def completion(options: Namespace) -> int:
    """Print the completion for a shell."""
    script = "\n".join(_SHELLS[options.shell](options.whole.verbs))
    if options.json:
        show_json({"shell": options.shell, "script": script})
    else:
        print(script)
    return FINE


def _bash(verbs: _Verbs) -> Iterator[str]:
    yield "# Completion of cntkio for bash."
    yield "_cntkio() {"
    yield '    local current="${COMP_WORDS[COMP_CWORD]}" previous="${COMP_WORDS[COMP_CWORD-1]}" words=""'
    yield '    if [ "$COMP_CWORD" -eq 1 ]; then'
    yield f'        words="{" ".join(verbs)} --help --version"'
    yield '    else case "${COMP_WORDS[1]}" in'
    for name, verb in verbs.items():
        words = " ".join(option for argument in verb.arguments for option in argument.options)
        choices = " ".join(word for argument in verb.arguments if not argument.options for word in argument.choices)
        yield f'        {name}) words="{" ".join(filter(None, (words, choices, "--help")))}" ;;'
    yield "    esac; fi"
    yield '    case "${COMP_WORDS[1]} $previous" in'
    for name, verb in verbs.items():
        for argument in verb.arguments:
            for option in argument.options if argument.choices else ():
                yield f'        "{name} {option}") words="{" ".join(argument.choices)}" ;;'
    yield "    esac"
    yield '    COMPREPLY=($(compgen -W "$words" -- "$current"))'
    yield "}"
    yield "complete -o default -F _cntkio cntkio"


def _zsh(verbs: _Verbs) -> Iterator[str]:
    yield "#compdef cntkio"
    yield "local -a verbs"
    yield f"verbs=({' '.join(shlex.quote(f'{name}:{_summary(verb)}') for name, verb in verbs.items())})"
    yield "if (( CURRENT == 2 )); then _describe verb verbs; return; fi"
    yield "local verb=$words[2]"
    yield "shift words; (( CURRENT-- ))"
    yield "case $verb in"
    for name, verb in verbs.items():
        specifications = []
        for argument in verb.arguments:
            values = f"({' '.join(argument.choices)})" if argument.choices else "_files"
            value = f":{_plain(argument.metavar)}:{values}" if argument.metavar else ""
            for option in argument.options:
                specifications.append(shlex.quote(f"{option}[{_plain(argument.help)}]{value}"))
            if not argument.options:
                times = "*" if argument.is_repeated else ":" if argument.is_optional else ""
                specifications.append(shlex.quote(f"{times}{value}"))
        yield f"    {name}) _arguments {' '.join(dict.fromkeys(specifications))} ;;"
    yield "esac"


def _fish(verbs: _Verbs) -> Iterator[str]:
    yield "# Completion of cntkio for fish."
    for name, verb in verbs.items():
        yield f"complete -c cntkio -n __fish_use_subcommand -f -a {name} -d {shlex.quote(_summary(verb))}"
    for name, verb in verbs.items():
        for argument in verb.arguments:
            names = " ".join(
                # fish has three forms: -l for --long, -s for a letter, -o for words after a single hyphen.
                f"-l {option[2:]}" if option.startswith("--") else f"-{'s' if len(option) == 2 else 'o'} {option[1:]}"
                for option in argument.options
            )
            values = f" -x -a {shlex.quote(' '.join(argument.choices))}" if argument.choices else ""
            value = values or (" -r" if argument.metavar and argument.options else "")
            if names or values:
                condition = f"-n '__fish_seen_subcommand_from {name}'"
                yield f"complete -c cntkio {condition} {names}{value} -d {shlex.quote(argument.help)}"


def _summary(verb: Parser) -> str:
    return _plain((verb.description or "").split(".")[0])


def _plain(text: str) -> str:
    """Return a text without the characters that are special in zsh."""
    return text.translate(str.maketrans("[]:", "().")).replace("\n", " ")


_SHELLS = {"bash": _bash, "zsh": _zsh, "fish": _fish}
