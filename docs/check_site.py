"""Check a built site: each public name has an entry with a signature, types and a text; each verb has a section.

python docs/check_site.py site
"""

import html
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from cntkio.cli.arguments import parser

_ENTRY = re.compile(
    r'<dt class="sig sig-object py"[^>]*>(.*?)</dt>\s*<dd>(.*?)(?=<dt class="sig|</section>)', re.DOTALL
)
_NAME = re.compile(r"(?:cntkio\.)[\w.]+")
_LISTED = re.compile(r"^\.\. auto(\w+):: ([\w.]+)$", re.MULTILINE)
_PRIVATE = re.compile(r"(?<![\w.'])_[A-Za-z]\w*")
# What Sphinx prints in place of names that the code uses.
_UNREADABLE = ("_HasDType", "<factory>", "<class", "~", "TypeAliasForwardRef", "Alias for field number")


def _text(markup: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]+>", "", markup)).split())


def findings(site: Path) -> Iterator[str]:
    """Yield what is wrong with the pages of the reference."""
    pages = sorted((Path(__file__).parent / "reference").glob("*.md"))
    for page in pages:
        built = (site / "reference" / f"{page.stem}.html").read_text(encoding="utf-8")
        # An object that a second page shows has no anchor there, so the name is that of the signature.
        texts = [(_text(signature), _text(body)) for signature, body in _ENTRY.findall(built)]
        entries = {name[0]: pair for pair in texts if (name := _NAME.search(pair[0].partition("(")[0]))}
        for kind, name in _LISTED.findall(page.read_text(encoding="utf-8")):
            signature, body = entries.get(name, ("", ""))
            if not body:
                yield f"{page.name}: {name} has no text"
            if kind == "function" and ("(" not in signature or "\N{RIGHTWARDS ARROW}" not in signature):
                yield f"{page.name}: {name} has no signature with types: {signature}"
        for name, pair in entries.items():
            if private := _PRIVATE.search(pair[0]):
                yield f"{page.name}: {name} shows the private name {private[0]}"
            for unreadable in _UNREADABLE:
                if unreadable in (pair[0] if unreadable == "~" else " ".join(pair)):
                    yield f"{page.name}: {name} shows {unreadable!r}"


def verbs_without_a_section(site: Path) -> Iterator[str]:
    """Yield which verbs of the command the page of arguments lacks."""
    page = _text((site / "cli-reference.html").read_text(encoding="utf-8"))
    yield from (f"cli-reference: no cntkio {name}" for name in parser().verbs if f"cntkio {name}¶" not in page)


if __name__ == "__main__":
    found = [*findings(Path(sys.argv[1])), *verbs_without_a_section(Path(sys.argv[1]))]
    print(*found, sep="\n", end="\n" if found else "")
    sys.exit(bool(found))
