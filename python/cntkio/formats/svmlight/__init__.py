"""The svmlight (libsvm) text format. (docs/formats/svmlight.md)

::

    scan      the samples, and the range of the features, from a pass over the text or from the cache
    corpus    options, the opened corpus

Chunks, errors, places and caches are made as in CNTK's text format; only the lines differ.
"""

from cntkio.formats.svmlight.corpus import SvmlightDeserializer, svmlight_of

__all__ = ["SvmlightDeserializer", "svmlight_of"]
