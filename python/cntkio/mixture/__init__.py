"""`Mixture` and `SequenceMixture`: several sources in exact proportions. (docs/mixtures.md)

::

    Mixture           a a b a a b ...               each minibatch comes from one part
    SequenceMixture   a a b a | b a a b | ...       each sequence comes from one part

The turns of 1,000 consecutive steps or sequences contain each part as often as its weight says, evenly spread. Both
take them from `cntkio.timeline.weights`. The parts of a `Mixture` are sources of any kind, each with its joins,
its truncation and its own position. A `SequenceMixture` is one source, whose corpus has the sequences of all parts.
"""

from cntkio.mixture.minibatches import Mixture, MixturePlan
from cntkio.mixture.sequences import SequenceMixture

__all__ = ["Mixture", "MixturePlan", "SequenceMixture"]
