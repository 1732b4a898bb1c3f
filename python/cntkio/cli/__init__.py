"""The command `cntkio`: the contents of a corpus, its minibatches, and how fast it reads. (docs/cli.md)

::

    inspect, head    the contents and figures of a corpus, its sequences; vocab prints the words in its comments
    check            what is wrong with a corpus; rule explains a finding
    convert, diff    from one format to another, selections; how two corpora differ
    plan, explain    how a corpus will be batched, and what a step delivers
    bench            minibatches as a training program reads them, and the throughput; index, config
    show             what verbs print, and the corpora of a call
    parsing          the parser, and the completion and the page that it generates

    command ──> arguments ──> the verbs ──> show

Invariant: a verb decides what to ask the library and how to print the answer, nothing else. Results go to standard
output: one fact per line, or JSON. Progress (only on a terminal) and complaints go to standard error. The exit status
is 0 for success, 1 for bad data and 2 for a wrong call; `command` makes it of the errors that a verb raises.

The standard library reads the arguments and draws the progress bar, because the command has to work after an
installation without extras.
"""

from cntkio.cli.command import main

__all__ = ["main"]
