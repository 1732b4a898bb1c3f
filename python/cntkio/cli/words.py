"""The arguments and verbs of the parser, for the completion of shells and the page with all options."""

from __future__ import annotations

import argparse
import re
from argparse import ArgumentParser
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, NoReturn

from cntkio.hints import did_you_mean, there_are


class HelpFormatter(argparse.HelpFormatter):
    """Formatter of help that keeps the lines of examples, and prints the meaning of each verb next to the verb."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith("examples:") else super()._fill_text(text, width, indent)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        text = super()._format_action_invocation(action)
        # argparse makes the first column wide enough for this text, but not for the verbs, which are indented more.
        return text.ljust(max(map(len, action.choices or ())) + 4) if action.nargs == argparse.PARSER else text


class Parser(ArgumentParser):
    """A parser that can list its arguments and its verbs."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        self._added: list[argparse.Action] = []
        self._suggested: dict[str, tuple[str, ...]] = {}
        self._verbs: Mapping[str, Parser] = {}
        self._is_parsing = False
        super().__init__(*arguments, **{"formatter_class": HelpFormatter, **keywords})

    def add_argument(self, *names: Any, **keywords: Any) -> argparse.Action:
        """Add an argument, as `ArgumentParser` does."""
        added = super().add_argument(*names, **keywords)
        self._added.append(added)
        return added

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse arguments. Options may appear anywhere between the words of a verb."""
        if self._verbs or self._is_parsing:
            return super().parse_known_args(args, namespace)
        self._is_parsing = True
        try:
            parsed, unknown = self.parse_known_intermixed_args(args, namespace)
        finally:
            self._is_parsing = False
        if unknown:
            known = [option for argument in self.arguments() for option in argument.options]
            self.error(f"unrecognized arguments: {' '.join(unknown)}{did_you_mean(unknown[0], known)}")
        return parsed, unknown

    def error(self, message: str) -> NoReturn:
        """End the process with a message, the nearest verb if a verb is unknown, and the way to the help.

        Raises:
            SystemExit: With 2.
        """
        if match := re.match(r"argument (?:VERB|CONVERTER): invalid choice: '(.*?)'", message):
            message = f"there is no {match[1]!r}{there_are(match[1], self._verbs)}"
        self.exit(2, f"{self.prog}: error: {message}\nsee {self.prog} --help\n")

    def group(self, title: str) -> Callable[..., None]:
        """Begin a group of the help, and return the function that adds arguments to it."""
        group = self.add_argument_group(title)

        def add(*names: Any, **keywords: Any) -> None:
            self._added.append(group.add_argument(*names, **keywords))

        return add

    def suggest(self, dest: str, values: Iterable[str]) -> None:
        """Let shells complete these values of an argument, which may have other values, too."""
        self._suggested[dest] = tuple(values)

    def add_subparsers(self, **keywords: Any) -> Any:
        """Add verbs, as `ArgumentParser` does."""
        added = super().add_subparsers(**keywords)
        self._verbs = added.choices
        return added

    def arguments(self) -> Iterator[Argument]:
        """Yield the arguments, in order, except for verbs and `--help`."""
        for action in self._added:
            if action.dest == "help":
                continue
            takes_value = action.nargs != 0
            metavar = action.metavar or ("{" + ",".join(map(str, action.choices or ())) + "}")
            yield Argument(
                tuple(action.option_strings),
                str(metavar) if takes_value else "",
                action.help or "",
                tuple(map(str, action.choices or self._suggested.get(action.dest, ()))),
                is_repeated=action.nargs in ("*", "+"),
                is_optional=action.nargs in ("*", "?"),
            )

    def verbs(self) -> dict[str, Parser]:
        """Return the parser of each verb, by name; aliases are left out."""
        found: dict[str, Parser] = {}
        for name, verb in self._verbs.items():
            if verb not in found.values():
                found[name] = verb
        return found


class Argument(NamedTuple):
    """An argument of a verb.

    Attributes:
        options: Its options, such as `-n` and `--sequences`; empty: a positional argument.
        metavar: Name of its value; empty: it has none.
        help: Description.
        choices: Possible values, or values that shells complete; empty: any value.
        is_repeated: Whether several values may follow.
        is_optional: Whether a value may be missing.
    """

    options: tuple[str, ...]
    metavar: str
    help: str
    choices: tuple[str, ...]
    is_repeated: bool
    is_optional: bool
