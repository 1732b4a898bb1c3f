"""An option of reading a file stands in one table: functions, formats and the command have it from there."""

import inspect
from typing import get_type_hints

import cntkio
import pytest
from cntkio.arguments import COMMAND
from cntkio.cli.arguments import parser
from cntkio.convert import Reading, convert_file, corpus_of
from cntkio.errors import ConfigError
from cntkio.formats.contract import ReadingOptions
from cntkio.formats.detect import KINDS

IRIS = "examples/iris/iris.ctf"
TABLE = list(Reading.__annotations__)
OF_VERBS = {"streams", *TABLE} - {"dtype", "one_hot", "key"}  # the other three are options of `convert`


@pytest.mark.parametrize("function", [cntkio.check, convert_file, corpus_of])
def test_functions_take_the_keywords_of_the_table(function: object) -> None:
    plain = inspect.unwrap(function)  # type: ignore[arg-type]
    assert get_type_hints(plain)["reading"].__args__ == (Reading,)


@pytest.mark.parametrize("verb", ["inspect", "head", "check", "diff", "plan", "explain", "index", "bench", "convert"])
def test_verbs_have_the_options_of_the_table(verb: str) -> None:
    flags = {flag for argument in parser().verbs[verb].arguments for flag in argument.options}
    expected = {"streams", *TABLE} if verb == "convert" else OF_VERBS
    assert {COMMAND.flag(name) for name in expected} <= flags


def test_formats_take_only_options_of_the_table() -> None:
    known = ReadingOptions.__annotations__.keys()
    assert {name for kind in KINDS.values() for name in kind.options} <= known


@pytest.mark.parametrize("name", sorted({*TABLE} - {*KINDS["ctf"].options, "key"}))
def test_an_option_that_no_file_takes_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} applies only to"):
        cntkio.check(IRIS, **{name: "a"})  # type: ignore[arg-type]
