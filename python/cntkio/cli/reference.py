"""The page with all arguments of all verbs, generated from the parser.

::

    python -m cntkio.cli.reference > docs/cli-reference.md
"""

from __future__ import annotations

from collections.abc import Iterator

from cntkio.cli.arguments import parser
from cntkio.cli.words import Argument, Parser

_HEAD = """\
# Arguments of the command

The program `python -m cntkio.cli.reference` makes this page from the parser. [The command line](cli.md) explains the
verbs.
"""


def page() -> str:
    """Return the page as Markdown."""
    whole = parser()
    sections = [_HEAD]
    for name, verb in whole.verbs().items():
        sections.append("\n".join(_section(f"cntkio {name}", verb)))
    for name, converter in parser(["convert", "ctf2cbf"]).verbs()["convert"].verbs().items():
        sections.append("\n".join(_section(f"cntkio convert {name}", converter)))
    return "\n\n".join(sections)


def _section(name: str, verb: Parser) -> Iterator[str]:
    arguments = list(verb.arguments())
    yield f"## {name}\n"
    yield f"{verb.description}\n"
    words = [_usage(argument) for argument in arguments if not argument.options]
    yield "```text"
    yield " ".join([name, *words, "[options]"])
    yield "```\n"
    yield "| argument | meaning |"
    yield "|---|---|"
    for argument in arguments:
        names = ", ".join(f"`{option}`" for option in argument.options)
        value = f" `{argument.metavar}`" if argument.metavar else ""
        help_text = argument.help.replace("|", "\\|")
        yield f"| {(names + value).strip().replace('|', chr(92) + '|')} | {help_text} |"
    examples = [line.strip() for line in (verb.epilog or "").splitlines() if line.strip().startswith("$")]
    if examples:
        yield "\n```console"
        yield from examples
        yield "```"


def _usage(argument: Argument) -> str:
    word = f"{argument.metavar} ..." if argument.is_repeated else argument.metavar
    return f"[{word}]" if argument.is_optional else word


if __name__ == "__main__":
    print(page())
