"""Surveys of whole corpora: their figures, their pictures, and what is wrong with them. (docs/cli.md, docs/check.md)

::

    Corpus ── blocks ──> arrays, chunk by chunk ──> figures    counts, ranges, quantiles, histograms
                                               └──> check      findings, each with its rule and its place

    blocks      the chunks of a corpus as arrays
    figures     counts, ranges, quantiles, histograms, padding
    pictures    figures as block characters, and as a page of HTML
    checking    the scan for errors, warnings and suspicious data
    findings    what a scan found, counted and listed
    rules       the kinds of findings, and their pages

Invariant: memory is bounded by a few chunks, except for histograms, whose size is bounded, and the list of findings.
"""

from cntkio.survey.blocks import Block, blocks

__all__ = ["Block", "blocks"]
