"""The command `cntkio`: the contents of a corpus, its minibatches, and how fast it reads. (docs/cli.md)

::

    inspect     print the contents of a corpus
    head        print the first sequences
    stats       print figures with histograms, or write them as a page of HTML
    check       report what is wrong with a corpus; rule explains a finding
    vocab       print the words of one-hot samples that have comments
    read        read minibatches as a training program does, also with a configuration, and print the throughput
    config      print the meaning of a configuration
    index       write the index cache
    convert     convert from one format to another
    completion  print the completion of words for a shell

    command ──> arguments ──> inspect, head, stats, check, vocab, read, config, convert ──> show
                              corpora

Invariant: a verb decides what to ask the library and how to print the answer, nothing else. Results go to standard
output: one fact per line, or JSON. Progress (only on a terminal) and complaints go to standard error. The exit status
is 0 for success, 1 for bad data and 2 for a wrong call.

The standard library reads the arguments and draws the progress bar, because the command has to work after an
installation without extras.
"""

from cntkio.cli.command import main

__all__ = ["main"]
