"""The verbs `plan` and `explain`: how a corpus will be batched, and what a step delivers. (docs/plan.md)

Neither reads data: both need only the index.
"""

from __future__ import annotations

import json
import re
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from cntkio.arguments import did_you_mean
from cntkio.cli.show import FINE, Facts, complain, described, file_facts, inputs_of, separated, write_page
from cntkio.corpora import Described, Input
from cntkio.displays import counted
from cntkio.errors import ConfigError
from cntkio.mixture import SequenceMixture
from cntkio.source import ExplainedStep, Ledger, MinibatchSource, SourcePlan, sweeps_of
from cntkio.survey.figures import OrderFigures, order_figures
from cntkio.survey.pictures import histogram_line, number, order_drawing, order_page
from cntkio.timeline import INFINITELY_REPEAT, BalancedPartition, Budget, GlobalPartition, Partition, Size

# A plan follows the steps of every rank, so its time and memory grow with the number of ranks.
_MOST_RANKS = 4096
_ALL_STEPS = 2**28  # no plan has more
_TABLES = (".json", ".parquet", ".pq", ".arrow", ".feather", ".ipc")
DEALS: dict[str, Callable[[int, int], Partition]]
DEALS = {"cntk": Partition, "balanced": BalancedPartition, "global": GlobalPartition}
"""For each way in which ranks share the data, the partition of a rank."""
_LIMITS = ("minibatch_size", "padded", "rows", "max_length")  # options that may be a table by position
_TABLE_OF_LIMIT = re.compile(r"\d+:\d+(,\d+:\d+)*", re.ASCII)
Amount: TypeAlias = int | dict[int, int]
"""A limit of a budget: a number, or a table of numbers by position. (docs/schedules.md)"""
_WEIGHT = r"(?:\d+\.?\d*|\.\d+)(?:e-?\d+)?"
_WEIGHTS = re.compile(rf"{_WEIGHT}(,{_WEIGHT})*|\d+:{_WEIGHT}(,(\d+:)?{_WEIGHT})*", re.ASCII)
Shares: TypeAlias = Mapping[int, tuple[float, ...]]
"""The weights of the parts of a mixture, by position."""
_ASKED = ("step", "steps", "position", "sequence_key")  # options of `explain` that exclude each other


def limit_of(text: str) -> Amount:
    """Read a limit such as ``4096``, or a table such as ``0:4096,10000:8192``; another text is a `ValueError`.

    Example:
        >>> limit_of("4096"), limit_of("0:4096,10000:8192")
        (4096, {0: 4096, 10000: 8192})
    """
    if text.isdecimal():
        return int(text)
    if not _TABLE_OF_LIMIT.fullmatch(text):
        raise ValueError(text)
    points = [point.split(":") for point in text.split(",")]
    table = {int(position): int(value) for position, value in points}
    if len(table) < len(points):  # a position comes twice
        raise ValueError(text)
    return table


def weights_in(text: str) -> Shares:
    """Read a weight for each corpus such as ``3,1``, or a table such as ``0:3,1,8000:1,1``; else it is a `ValueError`.

    Example:
        >>> weights_in("3,1"), weights_in("0:3,1,8000:1,.5")
        ({0: (3.0, 1.0)}, {0: (3.0, 1.0), 8000: (1.0, 0.5)})
    """
    if not _WEIGHTS.fullmatch(text):
        raise ValueError(text)
    table: dict[int, tuple[float, ...]] = {}
    # A point begins with its position, and its weights follow.
    for point in re.split(r",(?=\d+:)", text):
        position, _, weights = point.rpartition(":")
        if int(position or 0) in table:  # a position comes twice
            raise ValueError(text)
        table[int(position or 0)] = tuple(map(float, weights.split(",")))
    if len({*map(len, table.values())}) > 1:
        raise ValueError(text)
    return table


_READERS: dict[str, Callable[[str], Any]] = {**dict.fromkeys(_LIMITS, limit_of), "weights": weights_in}


class Setting(NamedTuple):
    """Options of a plan, as on the command line. A limit of a budget may be a table by position.

    Attributes:
        minibatch_size: Samples of a minibatch of all ranks.
        window: Chunks within which sequences are shuffled; 0: in order; None: the default of a source.
        deal: The way in which the ranks share the data.
        truncation_length: Samples of a part of a truncated sequence; 0: sequences are not truncated.
        padded: Samples of a minibatch after padding, as in a `Budget`; 0: no limit.
        pool: Sequences of a pool; 0: no pools.
        rows: Rows of a minibatch that are packed; 0: minibatches are not packed.
        row_length: Samples of a row.
        max_length: Samples of the longest sequence; longer sequences are left out. 0: no limit.
        between: How a table goes from a value to the next, as in a `Budget`.
        balance: What the ranks get in equal parts, as in a `Budget`; "": nothing.
        cost: With `balance`, the cost of a sample and of the square of a length, as "1:2"; "": that of attention.
        order: Order in the window, as of a source.
        leave_out: A file of keys that are left out, perhaps with `@` and the position from which on; "": none.
        weights: The weights by which the corpora are mixed, sequence by sequence; empty: each is planned by itself.
        lanes: With the deal "global", the number of lanes; 0: the order is that of a single reader.
    """

    minibatch_size: Amount = 1024
    window: int | None = None
    ranks: int = 1
    deal: str = "cntk"
    seed: int = 0
    truncation_length: int = 0
    padded: Amount = 0
    pool: int = 0
    rows: Amount = 0
    row_length: int = 0
    max_length: Amount = 0
    between: Literal["linear", "steps"] = "linear"
    balance: str = ""
    cost: str = ""
    order: str = "cntk"
    leave_out: str = ""
    weights: Shares = MappingProxyType({})
    lanes: int = 0

    @classmethod
    def of(cls, options: Namespace) -> Setting:
        """Return the setting of a call."""
        return cls(*(getattr(options, name) for name in cls._fields))

    def changed(self, text: str) -> Setting:
        """Return the setting with changes such as `window=16,ranks=4`."""
        changes: dict[str, Any] = {}
        # The commas of a table are between its points.
        for change in re.split(",(?=[^,:]*=)", text):
            name, equals, value = change.partition("=")
            # A change may be written like the option, as --minibatch-size=256.
            field = name.strip().lstrip("-").replace("-", "_")
            if field not in self._fields or not equals:
                known = ", ".join(name.replace("_", "-") for name in self._fields)
                hint = did_you_mean(field, self._fields)
                raise ConfigError(f"--compare {change!r}: expected NAME=VALUE with one of {known}{hint}", key="compare")
            changes[field] = self._value(field, change, value.strip())
            if field == "weights" and not self.weights:
                raise ConfigError(f"--compare {change!r}: expected --weights, too", key="compare")
        return self._replace(**changes)

    def _value(self, field: str, change: str, text: str) -> Any:
        """Read the value of a field in a change."""
        if isinstance(getattr(self, field), str):
            return text
        with suppress(ValueError):
            if field in _READERS or text.isdecimal():
                return _READERS.get(field, int)(text)
        expected = "a whole number" + ", or a table such as 0:64,10000:256" * (field in _LIMITS)
        if field == "weights":
            expected = "a weight for each corpus, such as 3,1, or 0:3,1,8000:1,1"
        raise ConfigError(f"--compare {change!r}: expected {expected}", key="compare")

    def check(self) -> None:
        """Refuse a setting that no source supports."""
        # The parser has checked `--deal`, but not the changes of `--compare`.
        if self.deal not in DEALS:
            raise ConfigError(f"deal={self.deal}: expected one of {', '.join(DEALS)}", key="deal")
        if not 1 <= self.ranks <= _MOST_RANKS:
            raise ConfigError(f"ranks={self.ranks}: expected 1 to {_MOST_RANKS}", key="ranks")
        if self.lanes and self.deal != "global":
            raise ConfigError(f"lanes={self.lanes} with deal={self.deal}: lanes need --deal global", key="lanes")
        self.partition(0)
        self.size()

    def partition(self, rank: int) -> Partition:
        """Return what a rank delivers."""
        if self.lanes:
            return GlobalPartition(rank, self.ranks, lanes=self.lanes)
        return DEALS[self.deal](rank, self.ranks)

    def size(self) -> Size:
        """Return the size of a minibatch: a budget if one of its options is given."""
        names = ("padded", "pool", "rows", "row_length", "max_length")
        given: dict[str, Any] = {name: value for name in names if (value := getattr(self, name))}
        if self.max_length:
            given["oversize"] = "drop"
        if self.balance:
            given["balance"] = self.balance
        if self.cost:
            given["cost"] = self._costs()
        # Without a limit of its own, a budget has that of the minibatch size.
        if (given or not isinstance(self.minibatch_size, int)) and not self.padded and not self.rows:
            given["samples"] = self.minibatch_size
        # Weights have points of their own.
        has_table = any(isinstance(getattr(self, name), dict) for name in _LIMITS)
        if self.between != "linear" and (has_table or len(self.weights) < 2):
            given["between"] = self.between
        return Budget(**given) if given or not isinstance(self.minibatch_size, int) else self.minibatch_size

    def _costs(self) -> tuple[float, float]:
        try:
            linear, square = map(float, self.cost.split(":"))
        except ValueError:
            why = "expected the cost of a sample and of the square of a length, such as 4096:1"
            raise ConfigError(f"cost={self.cost}: {why}", key="cost") from None
        return linear, square

    def open(self, corpora: Sequence[Described], num_sweeps: int = INFINITELY_REPEAT) -> MinibatchSource:
        """Open a source of a corpus; or, with weights, of all corpora: its sweeps have as many sequences as they."""
        if not self.weights:
            return self._open_one(corpora[0], num_sweeps)
        names = [_name(one) for one in corpora]
        for position, weights in self.weights.items():
            if len(weights) != len(names):
                found = f"{counted(len(weights), 'weight')} at position {position}"
                expected = f"a weight for each of {', '.join(names)}"
                raise ConfigError(f"--weights: found {found}; expected {expected}", key="weights")
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"{name} is given twice; a mixture has each corpus once", key="file")
        with ExitStack() as opened:
            parts = {}
            for index, (name, one) in enumerate(zip(names, corpora, strict=True)):
                table = {position: weights[index] for position, weights in self.weights.items()}
                parts[name] = opened.enter_context(self._open_one(one, INFINITELY_REPEAT)), table
            mixture = SequenceMixture(parts, stop="forever", between=self.between)
        if num_sweeps < INFINITELY_REPEAT:
            mixture.begin_epoch(0, num_sweeps * mixture.num_sequences)
        return mixture

    def _open_one(self, one: Described, num_sweeps: int) -> MinibatchSource:
        options: dict[str, Any] = {"randomize": self.window != 0, "truncation_length": self.truncation_length}
        options["order"] = self.order
        if self.window:
            options["randomization_window_in_chunks"] = self.window
        if self.leave_out:
            path, _, position = self.leave_out.rpartition("@")
            is_named = bool(path) and position.isdecimal()
            options["leave_out"] = {int(position) if is_named else 0: path if is_named else self.leave_out}
        return one.open(max_sweeps=num_sweeps, randomization_seed=self.seed, **options)

    def plan(self, source: MinibatchSource, rank: int) -> SourcePlan:
        """Return the plan of a rank."""
        return source.plan(self.size(), self.partition(rank))

    def text(self) -> str:
        """Return the setting for people."""
        window = {None: "the default window", 0: "in order"}.get(self.window, f"window {self.window}")
        window += f", order {self.order}" * (self.order != "cntk")
        ranks = f", {self.ranks} ranks ({self.deal})" if self.ranks > 1 else ""
        ranks += f", {self.lanes} lanes" * bool(self.lanes)
        truncated = f", truncated to {self.truncation_length}" if self.truncation_length else ""
        limits = [f"{_amount(self.rows)} rows of {self.row_length:,} samples"] * bool(self.rows)
        limits += [f"{_amount(self.padded)} samples with padding"] * bool(self.padded)
        longest = f", sequences of at most {_amount(self.max_length)} samples" * bool(self.max_length)
        pool = f", pools of {self.pool:,}" if self.pool else ""
        pool += f", equal cost ({self.balance}{f', {self.cost}' if self.cost else ''})" if self.balance else ""
        points = [":".join(f"{weight:g}" for weight in weights) for weights in self.weights.values()]
        mixed = f", weights {' to '.join(points)}" * bool(points)
        size = " and ".join(limits) or f"{_amount(self.minibatch_size)} samples"
        return f"{size}{longest}{pool}, {window}{ranks}{truncated}{mixed}"


def _amount(limit: Amount) -> str:
    return f"{limit:,}" if isinstance(limit, int) else " to ".join(f"{value:,}" for value in limit.values())


def plan(options: Namespace) -> int:
    """Print how corpora will be batched."""
    settings = [Setting.of(options), *(Setting.of(options).changed(text) for text in options.compare or ())]
    for one in settings:
        # All settings are checked before a corpus is opened, which may take a pass over a large file.
        one.check()
    shown: list[tuple[str, list[tuple[str, OrderFigures]]]] = []
    if options.table is not None:
        _check_table(options)
    for corpora in separated(options, _corpora(options)):
        found = [_figures(one, corpora, options.sweeps) for one in settings]
        plans = [(one, of) for one, (of, _) in zip(settings, found, strict=True)]
        facts, about = _facts(corpora), found[0][1]
        facts.add_all(about)
        # A plan counts chunks, not bytes, so bytes are estimates with the mean size of a chunk.
        chunk_bytes = sum(corpus.input.size for corpus in corpora) / max(about["chunks"], 1)
        columns = [_texts(one, of, chunk_bytes) for one, of in plans]
        for name in (name for name in columns[0] if any(column[name] for column in columns)):
            for index, column in enumerate(columns):
                facts.add_line("" if index else name, column[name])
        facts.add_field("plans", [_fields(one, of, chunk_bytes) for one, of in plans])
        facts.show(as_json=options.json)
        if options.table is not None:
            _write_table(options, settings[0], corpora)
        shown.append((", ".join(corpus.input.name for corpus in corpora), [(one.text(), of) for one, of in plans]))
    if options.html is not None:
        write_page(options, options.html, order_page(shown))
    if options.svg is not None and shown:
        # A file of SVG is a single picture: of the first corpus and the first setting.
        write_page(options, options.svg, order_drawing(shown[0][1][0][1].map))
    return FINE


def explain(options: Namespace) -> int:
    """Print the sequences of a step, or the steps of a sequence."""
    setting = Setting.of(options)
    setting.check()
    if not 0 <= options.rank < setting.ranks:
        raise ConfigError(f"--rank {options.rank}: expected 0 to {setting.ranks - 1} (--ranks)", key="rank")
    # 0 is a valid step and a valid position, so only None is not given.
    asked = [f"--{name.rpartition('_')[2]}" for name in _ASKED if getattr(options, name) is not None]
    if len(asked) > 1:
        raise ConfigError(f"{' and '.join(asked)} exclude each other; expected one of them", key="step")
    if not asked:
        raise ConfigError("nothing to explain; expected --step, --steps, --position or --key", key="step")
    for corpora in separated(options, _corpora(options)):
        _explain(options, setting, corpora)
    return FINE


def _corpora(options: Namespace) -> Iterator[list[Described]]:
    """Yield each corpus by itself or, with weights, all corpora together."""
    with inputs_of(options) as files:
        found = (corpus for file in files for corpus in _corpora_in(options, file))
        yield from [[*found]] if options.weights else ([corpus] for corpus in found)


def _corpora_in(options: Namespace, file: Input) -> Iterator[Described]:
    # Only the index is needed: a guess of the streams is enough, and the cache saves the pass of the next call.
    for corpus in described(options, file, cache_index=True, guesses_streams=True):
        if corpus.open_labels is not None:
            advice = f"cntkio plan LIST.scp --labels {file.name}"
            raise ConfigError(f"{file.name} has only labels; a plan also needs the features: {advice}")
        yield corpus


def _name(corpus: Described) -> str:
    return f"{corpus.input.name} {corpus.section}".strip()


def _facts(corpora: Sequence[Described]) -> Facts:
    if len(corpora) == 1:
        return file_facts(corpora[0].input, corpora[0].section)
    names, facts = [_name(corpus) for corpus in corpora], Facts()
    facts.add("files", names, ", ".join(names))
    return facts


def _figures(setting: Setting, corpora: Sequence[Described], num_sweeps: int) -> tuple[OrderFigures, dict[str, int]]:
    """Return the figures of a sweep, with the limits that change in several sweeps, and facts about the corpora.

    With weights, the figures are about all sweeps.
    """
    size, limits = setting.size(), dict[str, Any]()
    if isinstance(size, Budget) and size.schedules:
        with setting.open(corpora, num_sweeps) as source:
            limits = dict(setting.plan(source, 0).steps(_ALL_STEPS).limits)
    passed, num_steps = (num_sweeps, _ALL_STEPS) if setting.weights else (1, None)
    with setting.open(corpora, passed) as source:
        sweeps = sweeps_of([setting.plan(source, rank) for rank in range(setting.ranks)], num_steps)
        facts = {"sequences": source.num_sequences, "samples": source.num_samples, "chunks": source.num_chunks}
        rows = max((sweep.steps for sweep in sweeps), key=len).limits.get("rows", setting.rows)
        num_cells = np.asarray(rows) * setting.row_length
        return order_figures(sweeps, source.num_sequences, num_cells, limits, num_sweeps=passed), facts


def _check_table(options: Namespace) -> None:
    """Refuse a table that could not be written, before the plan is made."""
    if (len(options.file) > 1 and not options.weights) or options.compare:
        raise ConfigError("--table has the steps of one corpus and one setting; leave out --compare", key="table")
    if options.table.suffix.lower() not in _TABLES:
        expected = f"a name that ends with {', '.join(_TABLES)}"
        raise ConfigError(f"--table {options.table}: expected {expected}", key="table")


def _write_table(options: Namespace, setting: Setting, corpora: Sequence[Described]) -> None:
    """Write the steps of all ranks, in the format that the name of the file says."""
    with setting.open(corpora, options.sweeps) as source:
        of_ranks = [setting.plan(source, rank).steps(_ALL_STEPS).columns() for rank in range(setting.ranks)]
    ranks = np.repeat(np.arange(setting.ranks), [len(of_rank["step"]) for of_rank in of_ranks])
    columns = {name: np.concatenate([of_rank[name] for of_rank in of_ranks]) for name in of_ranks[0]}
    path, columns = options.table, {"rank": ranks, **columns}
    if path.suffix.lower() == ".json":
        write_page(options, path, json.dumps({name: column.tolist() for name, column in columns.items()}))
        return
    from cntkio.arrow import write_columns  # needs pyarrow

    write_columns(path, columns)
    if not options.quiet:
        complain(f"{path}: written")


def _fields(setting: Setting, found: OrderFigures, chunk_bytes: float) -> dict[str, Any]:
    """Return the fields of a plan for JSON."""
    fields = {**setting._asdict(), **found._asdict()}
    # Arrays for the pictures, which `--json` does not contain.
    del fields["map"], fields["course"], fields["limits"]
    fields["sizes"] = None if found.sizes is None else found.sizes._asdict()
    fields["bytes_in_memory"] = round(found.most_chunks * chunk_bytes)
    fields["bytes_read"] = round(found.num_loads * chunk_bytes)
    return fields


def _texts(setting: Setting, found: OrderFigures, chunk_bytes: float) -> dict[str, str]:
    """Return the facts of a plan for people."""
    samples, read, sizes = number(found.samples_of_a_step), _megabytes(found.num_loads * chunk_bytes), found.sizes
    if setting.ranks > 1 and setting.deal == "global" and not setting.lanes:
        read += " in whole chunks; less where ranks load only their own sequences"
    # Distances of neighbors say little if a minibatch is sorted by lane.
    shuffling = f"{100 * found.shuffling:.1f} % of a full shuffle" + ", within lanes" * bool(setting.lanes)
    memory = f"{counted(found.most_chunks, 'chunk')} at most, {_megabytes(found.most_chunks * chunk_bytes)} of the file"
    return {
        "setting": setting.text(),
        "steps": f"{found.num_steps:,}",
        "a step": f"{samples} samples, {number(found.sequences_of_a_step)} sequences on average",
        "samples of a step": histogram_line(sizes) if sizes and sizes.lowest != sizes.highest else samples,
        "left out": f"{counted(found.num_left_out, 'sequence')} of the sweep" if setting.max_length else "",
        "parts": ", ".join(_part(name, count, found) for name, count in found.components.items()),
        "padding": f"{100 * found.padding:.1f} %",
        "ranks wait": f"{100 * found.waiting:.1f} % of the time, {100 * found.lost:.1f} % of that of attention",
        "in memory": memory,
        "read in a sweep": read,
        "shuffling": shuffling,
    }


def _part(name: str, count: int, found: OrderFigures) -> str:
    share = count / max(sum(found.components.values()), 1)
    return f"{name} {counted(count, 'sequence')} ({100 * share:.1f} %)"


def _megabytes(num_bytes: float) -> str:
    return f"{num_bytes / 1e6:,.1f} MB" if num_bytes >= 1e5 else f"{num_bytes:,.0f} bytes"


def _explain(options: Namespace, setting: Setting, corpora: Sequence[Described]) -> None:
    # Parts of a mixture end their sweeps apart, so a sweep of all is an epoch.
    searched = (1, _ALL_STEPS) if setting.weights and options.sequence_key is not None else (INFINITELY_REPEAT, None)
    with setting.open(corpora, searched[0]) as source:
        plan, facts = setting.plan(source, options.rank), _facts(corpora)
        if options.sequence_key is not None:
            steps = plan.where(options.sequence_key, searched[1])
            facts.add("key", options.sequence_key)
            listed = ", ".join(f"{step:,}" for step in steps)
            facts.add("steps", steps, listed or "none of this rank in the first sweep")
        elif options.steps is not None:
            _add_ledger(facts, plan.ledger(*_range(options.steps)))
        else:
            explained = plan.explain(options.step, position=options.position)
            facts.add("step", explained.step)
            unit = "sequences" if setting.weights else "samples"
            facts.add("position", explained.position, f"{explained.position:,} {unit}, after the step")
            facts.add_all({"sequences": len(explained.keys), "samples": int(explained.num_samples.sum())})
            _add_delivered(facts, explained)
        facts.show(as_json=options.json)


def _range(text: str) -> tuple[int, int]:
    """Return the bounds of a range of steps, such as `100:110`."""
    first, colon, last = text.partition(":")
    if not (first.isdecimal() and colon and last.isdecimal()):
        raise ConfigError(f"--steps {text!r}: expected two numbers, such as 100:110", key="steps")
    return int(first), int(last)


def _add_ledger(facts: Facts, ledger: Ledger) -> None:
    facts.add("steps", np.unique(ledger.steps).tolist(), f"{len(ledger.positions):,}")
    facts.add_all({"sequences": len(ledger), "samples": int(ledger.num_samples.sum())})
    _add_delivered(facts, ledger, ledger.steps.tolist())


def _add_delivered(facts: Facts, explained: ExplainedStep | Ledger, steps: Sequence[int] = ()) -> None:
    """Add a row for each sequence, with its step if steps are given."""
    places = [origin.places.texts() for origin in explained.origins]
    for row, key in enumerate(explained.keys.tolist()):
        shown = key.decode(errors="replace") if isinstance(key, bytes) else key
        here = [of[row] for of in places]
        first, count = int(explained.first_samples[row]), int(explained.num_samples[row])
        of_step = {"step": steps[row]} if steps else {}
        fields = {**of_step, "key": shown, "first_sample": first, "samples": count, "places": here}
        part = f" from sample {first}" * bool(first)
        label = f"  {steps[row]}  {shown}" if steps else f"  {shown}"
        facts.add_item("delivered", fields, label, f"{', '.join(here)}, {counted(count, 'sample')}{part}")
