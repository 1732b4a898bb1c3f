"""The verb `completion`: words that a shell completes, generated from the parser."""

from __future__ import annotations

import shlex
from argparse import Namespace
from collections.abc import Callable, Iterator

from cntkio.cli.show import FINE, show_json
from cntkio.cli.words import Parser


def completion(options: Namespace) -> int:
    """Print the completion for a shell."""
    script = "\n".join(_SHELLS[options.shell](options.whole))
    if options.json:
        show_json({"shell": options.shell, "script": script})
    else:
        print(script)
    return FINE


def _bash(whole: Parser) -> Iterator[str]:
    verbs = whole.verbs()
    yield "# Completion of cntkio for bash."
    yield "_cntkio() {"
    yield '    local current="${COMP_WORDS[COMP_CWORD]}" previous="${COMP_WORDS[COMP_CWORD-1]}" words=""'
    yield '    if [ "$COMP_CWORD" -eq 1 ]; then'
    yield f'        words="{" ".join(verbs)} --help --version"'
    yield '    else case "${COMP_WORDS[1]}" in'
    for name, verb in verbs.items():
        words = " ".join(option for argument in verb.arguments() for option in argument.options)
        choices = " ".join(word for argument in verb.arguments() if not argument.options for word in argument.choices)
        yield f'        {name}) words="{" ".join(filter(None, (words, choices, "--help")))}" ;;'
    yield "    esac; fi"
    yield '    case "${COMP_WORDS[1]} $previous" in'
    for name, verb in verbs.items():
        for argument in verb.arguments():
            for option in argument.options if argument.choices else ():
                yield f'        "{name} {option}") words="{" ".join(argument.choices)}" ;;'
    yield "    esac"
    yield '    COMPREPLY=($(compgen -W "$words" -- "$current"))'
    yield "}"
    yield "complete -o default -F _cntkio cntkio"


def _zsh(whole: Parser) -> Iterator[str]:
    verbs = whole.verbs()
    yield "#compdef cntkio"
    yield "local -a verbs"
    yield f"verbs=({' '.join(shlex.quote(f'{name}:{_summary(verb)}') for name, verb in verbs.items())})"
    yield "if (( CURRENT == 2 )); then _describe verb verbs; return; fi"
    yield "local verb=$words[2]"
    yield "shift words; (( CURRENT-- ))"
    yield "case $verb in"
    for name, verb in verbs.items():
        specifications = []
        for argument in verb.arguments():
            values = f"({' '.join(argument.choices)})" if argument.choices else "_files"
            value = f":{_plain(argument.metavar)}:{values}" if argument.metavar else ""
            for option in argument.options:
                specifications.append(shlex.quote(f"{option}[{_plain(argument.help)}]{value}"))
            if not argument.options:
                times = "*" if argument.is_repeated else ":" if argument.is_optional else ""
                specifications.append(shlex.quote(f"{times}{value}"))
        yield f"    {name}) _arguments {' '.join(dict.fromkeys(specifications))} ;;"
    yield "esac"


def _fish(whole: Parser) -> Iterator[str]:
    verbs = whole.verbs()
    yield "# Completion of cntkio for fish."
    for name, verb in verbs.items():
        yield f"complete -c cntkio -n __fish_use_subcommand -f -a {name} -d {shlex.quote(_summary(verb))}"
    for name, verb in verbs.items():
        for argument in verb.arguments():
            names = " ".join(
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


_SHELLS: dict[str, Callable[[Parser], Iterator[str]]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
