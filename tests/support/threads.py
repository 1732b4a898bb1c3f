"""Work that several threads do at the same time."""

import sys
import threading
from collections.abc import Callable
from typing import Any


def together(num_threads: int, work: Callable[[int], Any]) -> list[Any]:
    """Call `work` with the number of each thread, on all threads at the same time, and return the results."""
    begin, results, errors = threading.Barrier(num_threads), [None] * num_threads, list[BaseException]()

    def run(number: int) -> None:
        begin.wait(60)
        try:
            results[number] = work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=[number]) for number in range(num_threads)]
    # An interpreter with a lock then passes it on after almost every step.
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
            assert not thread.is_alive(), "a thread hangs"
    finally:
        sys.setswitchinterval(before)
    if errors:
        raise errors[0]
    return results
