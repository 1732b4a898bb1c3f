"""Surveys of whole corpora: their figures, their pictures, and what is wrong with them. (docs/cli.md, docs/check.md)

::

    Corpus ── blocks ──> arrays, chunk by chunk ──> figures    counts, ranges, quantiles, histograms
                                               └──> check      findings, each with its rule and its place

    blocks      the chunks of a corpus as arrays

Invariant: memory is bounded by a few chunks, except for histograms, whose size is bounded, and the list of findings.
"""

from cntkio.survey.blocks import Block, blocks

__all__ = ["Block", "blocks"]
