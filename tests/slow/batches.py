"""Minibatches by budget, slow and obvious: one sequence at a time. (docs/batches.md)

The order of a sweep is a list of sequences; lengths are a list by sequence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cntkio import Budget
from support.twister import WORD, draws

from slow.mixtures import weight as weight_at


def weight(budget: Budget, length: int) -> int:
    return length + (length * length // budget.quadratic if budget.quadratic else 0)


def padded_length(budget: Budget, length: int) -> int:
    return min((bound for bound in budget.buckets if bound >= length), default=length)


def filled_rows(lengths: list[int], row_length: int) -> list[list[int]]:
    """Return the rows of consecutive sequences: a sequence that does not fit begins the next row."""
    rows: list[list[int]] = []
    for length in lengths:
        if rows and sum(rows[-1]) + length <= row_length:
            rows[-1].append(length)
        else:
            rows.append([length])
    return rows


def keeps(budget: Budget, lengths: list[int]) -> bool:
    """Return whether a minibatch of these lengths keeps the budget."""
    if budget.rows is not None:
        return len(filled_rows(lengths, budget.row_length or 0)) <= budget.rows
    area = len(lengths) * max(weight(budget, padded_length(budget, length)) for length in lengths)
    is_of_one_bucket = len({padded_length(budget, length) for length in lengths}) == 1
    return (
        (budget.samples is None or sum(weight(budget, length) for length in lengths) <= budget.samples)
        and (budget.sequences is None or len(lengths) <= budget.sequences)
        and (budget.padded is None or area <= budget.padded)
        and (not budget.buckets or (is_of_one_bucket and max(lengths) <= budget.buckets[-1]))
    )


def bucket_of(budget: Budget, length: int) -> int:
    """Return the bucket of a sequence; 0 without buckets."""
    return padded_length(budget, length) if budget.buckets else 0


def is_full(budget: Budget, lengths: list[int]) -> bool:
    """Return whether another sequence, as long as the longest, would exceed the budget."""
    longest = max(padded_length(budget, length) for length in lengths)
    samples = sum(weight(budget, length) for length in lengths)
    count = len(lengths) + 1
    return (
        (budget.samples is not None and samples + weight(budget, longest) > budget.samples)
        or (budget.sequences is not None and count > budget.sequences)
        or (budget.padded is not None and count * weight(budget, longest) > budget.padded)
        or (bool(budget.buckets) and longest > budget.buckets[-1])
    )


def packed_rows(lengths: list[int], sequences: list[int], row_length: int) -> list[list[int]]:
    """Pack sequences into rows: the longest first, each into the fullest row in which it fits."""
    rows: list[list[int]] = []
    for sequence in sorted(sequences, key=lambda other: -lengths[other]):
        rooms = [row_length - sum(lengths[other] for other in row) for row in rows]
        fitting = [number for number, room in enumerate(rooms) if room >= lengths[sequence]]
        if fitting:
            rows[min(fitting, key=lambda number: (rooms[number], number))].append(sequence)
        else:
            rows.append([sequence])
    return rows


def cost(budget: Budget, length: int) -> float:
    linear, square = budget.cost
    return linear * length + square * length * length


def targets(budget: Budget, descending: list[int], num_minibatches: int) -> list[float]:
    """Return the cost of a row of each minibatch, as long as its longest sequence and short sequences allow it."""
    rows = budget.rows or 0
    share = sum(descending) / (num_minibatches * rows)
    left = 0.0
    for length in descending:
        left += cost(budget, length)
    found = []
    for number in range(num_minibatches):
        mean = left / ((num_minibatches - number) * rows)
        if number * rows >= len(descending):
            found.append(mean)
            continue
        longest = descending[number * rows]
        samples, filled = 0, 0.0
        for length in reversed(descending):
            if samples >= share - longest:
                break
            samples, filled = samples + length, filled + cost(budget, length)
        found.append(max(mean, cost(budget, longest) + filled))
        left = max(left - found[-1] * rows, 0.0)
    return found


def even_rows(budget: Budget, lengths: list[int], sequences: list[int], num_minibatches: int) -> list[list[int]] | None:
    """Give the longest sequence to the row that lacks the most cost for each sample that it lacks; None: no room."""
    count, row_length = budget.rows or 0, budget.row_length or 0
    longest_first = sorted(sequences, key=lambda sequence: -lengths[sequence])
    rows: list[list[int]] = [[] for _ in range(num_minibatches * count)]
    costs = [0.0] * len(rows)
    wanted = targets(budget, [lengths[sequence] for sequence in longest_first], num_minibatches)
    share = sum(lengths[sequence] for sequence in sequences) / len(rows)

    def need(row: int) -> tuple[bool, float, int]:
        samples = sum(lengths[other] for other in rows[row])
        if samples >= share:
            return False, row_length - samples, -row
        return True, (wanted[row // count] - costs[row]) / (share - samples), -row

    for sequence in longest_first:
        fitting = [
            row
            for row, packed in enumerate(rows)
            if sum(lengths[other] for other in packed) + lengths[sequence] <= row_length
        ]
        if not fitting:
            return None
        row = max(fitting, key=need)
        rows[row].append(sequence)
        costs[row] += cost(budget, lengths[sequence])
    return rows


def balanced_rows(budget: Budget, lengths: list[int], rows: list[list[int]]) -> list[list[int]]:
    """Sort rows by cost, and let the first half of each minibatch ascend, and the second half descend."""
    costs = []
    for row in rows:
        costs.append(0.0)
        for sequence in row:
            costs[-1] += cost(budget, lengths[sequence])
    dearest_first = [row for _, row in sorted(zip(costs, rows, strict=True), key=lambda pair: -pair[0])]
    count, found = budget.rows or 0, []
    for at in range(0, len(rows), count):
        minibatch = dearest_first[at : at + count]
        found += [*reversed(minibatch[: count // 2]), *minibatch[count // 2 :]]
    return found


def rest_of_rows(budget: Budget, lengths: list[int], rows: list[list[int]], kept: set[int]) -> list[list[int]]:
    """Return the emptiest rows, without which whole minibatches remain, or no row; rows with `kept` sequences stay."""
    emptiest_first = sorted(rows, key=lambda row: sum(lengths[sequence] for sequence in row))
    may_go = [row for row in emptiest_first if not kept & {*row}]
    count = len(rows) % (budget.rows or 1)
    return may_go[:count] if len(may_go) >= count else []


def rest_by_length(budget: Budget, lengths: list[int], minibatches: list[list[int]], kept: set[int]) -> list[list[int]]:
    """Return the minibatches that waste the most cells, at most half of the sequences; those with `kept` stay."""

    def used(minibatch: list[int]) -> int:
        return sum(weight(budget, padded_length(budget, lengths[sequence])) for sequence in minibatch)

    def has_room(minibatch: list[int]) -> bool:
        longest = max(weight(budget, padded_length(budget, lengths[sequence])) for sequence in minibatch)
        samples = sum(weight(budget, lengths[sequence]) for sequence in minibatch)
        return (
            (budget.sequences is None or len(minibatch) < budget.sequences)
            and (budget.samples is None or samples + longest <= budget.samples)
            and (budget.padded is None or used(minibatch) + longest <= budget.padded)
        )

    rest, room = [], sum(map(len, minibatches)) // 2
    for minibatch in sorted(minibatches, key=used):
        if not kept & {*minibatch} and has_room(minibatch) and len(minibatch) <= room:
            rest.append(minibatch)
            room -= len(minibatch)
    return rest


def rows_of_pool(
    budget: Budget, lengths: list[int], sequences: list[int], kept: set[int] | None = None
) -> tuple[list[list[list[int]]], set[int]]:
    """Return the rows of each minibatch of a pool, and the sequences that are left over; None: none is."""
    count = budget.rows or 0
    rows = packed_rows(lengths, sequences, budget.row_length or 0)
    rest = [] if kept is None else rest_of_rows(budget, lengths, rows, kept)
    rows = [row for row in rows if row not in rest]
    if budget.balance is not None:
        num_minibatches = -(-len(rows) // count)
        rows += [[] for _ in range(num_minibatches * count - len(rows))]
        rows = balanced_rows(budget, lengths, even_rows(budget, lengths, sequences, num_minibatches) or rows)
    minibatches = [rows[at : at + count] for at in range(0, len(rows), count)]
    left = {sequence for row in rest for sequence in row}
    return [of for of in minibatches if not budget.drop_last or (len(of) == count and all(of))], left


def dealt_by_cost(budget: Budget, lengths: list[int], minibatch: list[int], num_ranks: int) -> list[list[int]]:
    """Deal a minibatch: the longest sequence goes to the rank with the least cost; ranks keep its order."""
    costs, ranks = [0.0] * num_ranks, [0] * len(minibatch)
    is_given = [False] * num_ranks
    for at in sorted(range(len(minibatch)), key=lambda at: -lengths[minibatch[at]]):
        ranks[at] = min(range(num_ranks), key=lambda rank: (is_given[rank], costs[rank]))
        if not all(is_given):
            ranks[at] = is_given.index(False)
        is_given[ranks[at]] = True
        costs[ranks[at]] += cost(budget, lengths[minibatch[at]])
    return [[one for one, of in zip(minibatch, ranks, strict=True) if of == rank] for rank in range(num_ranks)]


def cut(budget: Budget, lengths: list[int], sequences: list[int]) -> list[list[int]]:
    """Cut consecutive sequences before a limit would be exceeded."""
    return cut_with_rest(budget, lengths, sequences)[0]


def cut_with_rest(
    budget: Budget, lengths: list[int], sequences: list[int], kept: set[int] | None = None
) -> tuple[list[list[int]], set[int]]:
    """Cut consecutive sequences before a limit would be exceeded; also return the sequences that are left over.

    `kept` sequences are not left over; None: none is.
    """
    if budget.rows is not None:
        rows_of_each, left = rows_of_pool(budget, lengths, sequences, kept)
        return [sum(rows, []) for rows in rows_of_each], left
    minibatches: list[list[int]] = []
    for sequence in sequences:
        if minibatches and keeps(budget, [lengths[other] for other in [*minibatches[-1], sequence]]):
            minibatches[-1].append(sequence)
        else:
            minibatches.append([sequence])
    rest = [] if kept is None else rest_by_length(budget, lengths, minibatches, kept)
    left = {sequence for minibatch in rest for sequence in minibatch}
    if budget.drop_last:
        buckets = [bucket_of(budget, lengths[minibatch[0]]) for minibatch in minibatches]
        is_last = [bucket != after for bucket, after in zip(buckets, [*buckets[1:], None], strict=False)]
        minibatches = [
            minibatch
            for minibatch, last in zip(minibatches, is_last, strict=True)
            if not last or is_full(budget, [lengths[sequence] for sequence in minibatch])
        ]
    return [minibatch for minibatch in minibatches if minibatch not in rest], left


def shuffled(count: int, seed: int) -> list[int]:
    numbers = list(range(count))
    for at, draw in zip(range(count), draws(seed), strict=False):
        other = at + draw % (count - at)
        numbers[at], numbers[other] = numbers[other], numbers[at]
    return numbers


def sweep_of_batches(
    budget: Budget, lengths: list[int], order: list[int], own: list[bool], seed: int
) -> list[list[int]]:
    """Return the minibatches of a sweep; `own` says for each place in the order whether the partition delivers it.

    `seed` is the seed of the sweep.
    """
    if budget.oversize == "drop":
        longest = budget.row_length or max(lengths)
        is_sound = [length <= longest and keeps(budget, [length]) for length in lengths]
        own = [is_own and is_sound[at] for at, is_own in zip(order, own, strict=True)]
    if budget.pool is None:
        return cut(budget, lengths, [sequence for sequence, is_own in zip(order, own, strict=True) if is_own])
    minibatches: list[list[int]] = []
    first, pool = 0, []
    # With `carry`: what the pool before left over, and how often each of these was left over.
    rest, times, number = list[int](), dict[int, int](), 0
    for at, sequence in enumerate([*order, None]):
        size = len(pool) + 1
        if budget.pool_unit == "samples" and sequence is not None:
            size = sum(lengths[other] for other in [*pool, sequence])
        is_own = sequence is not None and own[at]
        if (pool or (rest and sequence is None)) and (sequence is None or (is_own and size > budget.pool)):
            arranged = [*rest, *pool]
            if budget.rows is None:
                arranged = sorted(arranged, key=lambda other: padded_length(budget, lengths[other]))
            is_last = not budget.carry or sequence is None or number % 16 == 15
            kept = None if is_last else {other for other in rest if times[other] == 2}
            batches, left = cut_with_rest(budget, lengths, arranged, kept)
            minibatches += [batches[number] for number in shuffled(len(batches), (seed + first) % WORD)]
            rest, times = (
                [other for other in [*rest, *pool] if other in left],
                {other: times.get(other, 0) + 1 for other in left},
            )
            first, pool, number = at, [], number + 1
        if sequence is not None and is_own:
            pool.append(sequence)
    return minibatches


def budget_at(limits: dict[str, Any], tables: dict[str, dict[int, int]], between: str, position: int) -> Budget:
    """Return the budget of a minibatch or a pool that begins at a position: each table has its value there."""
    values = {name: int(weight_at(table, position, is_linear=between == "linear")) for name, table in tables.items()}
    return Budget(**{**limits, **values})


def is_taken(budget: Budget, length: int) -> bool:
    """Return whether a sequence is not left out."""
    if budget.oversize != "drop":
        return True
    is_short = length <= min(budget.max_length or length, budget.row_length or length)
    return is_short and keeps(budget, [length])


def scheduled_batches(
    at_position: Callable[[int], Budget],
    lengths: list[int],
    orders: list[list[int]],
    own: list[list[bool]],
    seed: int,
    counts_sequences: bool = False,
) -> list[list[int]]:
    """Return the minibatches of sweeps if limits change with the position. (docs/schedules.md)

    A minibatch or a pool begins at the first sequence after the former that is taken. The position counts the
    samples of all sequences before it, or the sequences.
    """
    steps = [1] * len(lengths) if counts_sequences else lengths
    found = []
    for sweep, order in enumerate(orders):
        at = 0
        while at < len(order):
            position = sweep * sum(steps) + sum(steps[sequence] for sequence in order[:at])
            budget, first, taken = at_position(position), at, list[int]()
            while at < len(order):
                sequence = order[at]
                if own[sweep][at] and is_taken(budget, lengths[sequence]):
                    more = [lengths[other] for other in [*taken, sequence]]
                    size = sum(more) if budget.pool_unit == "samples" else len(more)
                    if taken and (not keeps(budget, more) if budget.pool is None else size > budget.pool):
                        break
                    taken.append(sequence)
                at += 1
            if budget.pool is None:
                is_whole = at < len(order) or not budget.drop_last
                if taken and (is_whole or is_full(budget, [lengths[sequence] for sequence in taken])):
                    found.append(taken)
                continue
            if budget.rows is None:
                taken = sorted(taken, key=lambda other: padded_length(budget, lengths[other]))
            batches = cut(budget, lengths, taken) if taken else []
            found += [batches[number] for number in shuffled(len(batches), (seed + sweep + first) % WORD)]
    return found
