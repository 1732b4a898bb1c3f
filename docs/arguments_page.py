"""Write the tables of the page cli-reference from the parsers of the command; docs/conf.py adds them to the page."""

from collections.abc import Iterable, Iterator

from cntkio.cli.arguments import parser
from cntkio.cli.parsing import Argument


def lines() -> Iterator[str]:
    """Yield the lines of the page after its introduction: a table for each verb."""
    verbs = parser().verbs
    # A dict and not a set, to keep the order of the arguments.
    common = {argument: None for verb in verbs.values() for argument in verb.arguments if argument.is_common}
    yield "## Options of corpora\n"
    yield "Every verb that reads corpora has these options; all verbs have `--json` and `--quiet`.\n"
    yield from _table(common)
    for name, verb in verbs.items():
        yield f"\n\n## cntkio {name}\n"
        yield f"{verb.description}\n"
        own = [argument for argument in verb.arguments if not argument.is_common]
        yield "```text"
        yield " ".join([f"cntkio {name}", *(_usage(argument) for argument in own if not argument.options), "[options]"])
        yield "```\n"
        yield from _table(own)
        examples = [line.strip() for line in (verb.epilog or "").splitlines() if line.strip().startswith("$")]
        if examples:
            yield "\n```console"
            yield from examples
            yield "```"


def _table(arguments: Iterable[Argument]) -> Iterator[str]:
    yield "| argument | meaning |"
    yield "|---|---|"
    for argument in arguments:
        names = ", ".join(f"`{option}`" for option in argument.options)
        value = f" `{argument.metavar}`" if argument.metavar else ""
        # A bar would end the cell.
        name, meaning = (cell.replace("|", "\\|") for cell in ((names + value).strip(), argument.help))
        yield f"| {name} | {meaning} |"


def _usage(argument: Argument) -> str:
    word = f"{argument.metavar} ..." if argument.is_repeated else argument.metavar
    return f"[{word}]" if argument.is_optional else word
