"""The table of trainers, with the tests of each trainer. (docs/trainers.md, tests/trainers/)"""

COLUMNS = {
    "resume in mid-sweep": "samples",
    "another number of ranks": "ranks",
    "mixture": "mixture",
    "budget": "budget",
    "packed rows": "rows",
}
"""What each column of the page's table stands for: the kind of data of a program, or ranks."""

_ALL = {"samples", "ranks", "mixture", "budget", "rows"}
TESTED = {
    "lightning": _ALL,
    "transformers": _ALL,
    "accelerate": _ALL,
    "torchtitan": _ALL,
    "torchft": _ALL,
    "keras": _ALL - {"ranks"},
    "flax": _ALL - {"ranks"},
    "grain": {"samples", "mixture"},
}
PACKAGES = {name: name for name in TESTED if name != "torchft"} | {"flax": "orbax", "grain": "orbax"}
"""The module without which the program of a trainer does not run. test_torchft.py kills replicas, not the whole job."""

KINDS = [(name, kind) for name in PACKAGES for kind in sorted(TESTED[name] - {"ranks"})]
ELASTIC = [(name, kind) for name, kind in KINDS if "ranks" in TESTED[name]]
