"""Surveys of whole corpora: figures, pictures, and what is wrong with the data. (docs/cli.md, docs/check.md)

::

    Corpus ── blocks ──> arrays, chunk by chunk ──> figures    counts, ranges, quantiles, histograms
                                               └──> checking   findings, each with its rule and its place

    blocks      the chunks of a corpus as arrays
    figures     counts, ranges, quantiles, histograms, padding
    pictures    figures as block characters, and as a page of HTML
    checks      the check of files and deserializers, of which several are joined
    checking    of one corpus: the scan for errors, warnings and suspicious data
    findings    what a scan found, counted and listed
    rules       the kinds of findings, and their pages

Invariant: memory is bounded by a few chunks, except for histograms, whose size is bounded, and the list of findings.
"""

from cntkio.survey.blocks import Block, blocks
from cntkio.survey.checks import check
from cntkio.survey.findings import Finding, Findings

__all__ = ["Block", "Finding", "Findings", "blocks", "check"]
