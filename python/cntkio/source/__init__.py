"""`MinibatchSource`: minibatches from deserializers, read ahead of need. (docs/timeline.md)"""

from cntkio.source.source import MinibatchSource, TraceLevel

__all__ = ["MinibatchSource", "TraceLevel"]
