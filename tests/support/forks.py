"""Work in a fork of the test's process."""

import os
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest


def in_a_fork(work: Callable[[], object]) -> str:
    """Return what a function returns, or the message of its error, as text; fail if it hangs."""
    receiving, sending = os.pipe()
    with warnings.catch_warnings():
        # JAX, if a test of this process has imported it, warns of every fork. The work here uses nothing of JAX.
        warnings.simplefilter("ignore", RuntimeWarning)
        child = os.fork()
    if child == 0:
        try:
            answer = f"{work()!r}"
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(sending, answer.encode())
        os._exit(0)
    os.close(sending)
    end = time.monotonic() + 60
    while os.waitpid(child, os.WNOHANG)[0] == 0:
        if time.monotonic() > end:
            os.kill(child, 9)
            os.waitpid(child, 0)
            pytest.fail("the fork hangs")
        time.sleep(0.01)
    with open(receiving, "rb") as answers:
        return answers.read().decode()


@contextmanager
def repeated_in_a_fork(work: Callable[[], object]) -> Iterator[Callable[[], None]]:
    """Do work again and again in a fork, which is killed at the end; yield a function that waits for the next end."""
    receiving, sending = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            while True:
                work()
                os.write(sending, b".")
        finally:
            os._exit(1)
    os.close(sending)

    def wait() -> None:
        assert os.read(receiving, 1) == b".", "the work failed"

    try:
        yield wait
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
        os.close(receiving)
