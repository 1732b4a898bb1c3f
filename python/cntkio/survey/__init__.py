"""Surveys of whole corpora: figures, pictures, and what is wrong with the data. (docs/cli.md, docs/check.md)

::

    Corpus ── blocks ──> arrays, chunk by chunk ──> figures    counts, ranges, quantiles, histograms
                                               └──> checks     findings, each with its rule and its places

    figures     blocks, which are chunks as arrays; counts, ranges, quantiles, histograms, padding; figures of an order
    pictures    figures as block characters, and as a page of HTML
    checks      the check of files and deserializers: errors, warnings, and what a source leaves out
    contents    the rules over values, indices, lengths, ids and equal sequences
    findings    what was found: one finding for each cause, with its cases and places
    rules       the kinds of findings, with advice

Invariant: memory is bounded by a few chunks, except for histograms, whose size is bounded, and the list of findings.
"""

from cntkio.survey.checks import check
from cntkio.survey.figures import Block, blocks
from cntkio.survey.findings import Finding, Findings

__all__ = ["Block", "Finding", "Findings", "blocks", "check"]
