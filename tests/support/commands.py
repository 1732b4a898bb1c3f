"""The command `cntkio` without the half second of processor time that Python and NumPy need to start.

Each call is a fork of a server that has imported the package. A small program named `cntkio` sends it the arguments,
the folder, the environment and its standard streams, so that shells find and run it like the installed command.
"""

import ast
import atexit
import contextlib
import functools
import gc
import os
import runpy
import select
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

# Imports only what Python has imported, and the C module below `socket`: `json` and `socket` take longer than the rest.
_CLIENT = """#!{python} -IS
import _socket, os, sys
server = _socket.socket(_socket.AF_UNIX)
server.connect({address!r})
call = repr([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
streams = b"".join(number.to_bytes(4, sys.byteorder) for number in range(3))
sent = server.sendmsg([call], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
server.sendall(call[sent:])
server.shutdown(_socket.SHUT_WR)
sys.exit(int(server.recv(9) or 1))
"""


def run(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Call the command, with the options of `subprocess.run`."""
    options = {"text": True} | options
    return subprocess.run([_server() / "cntkio", *arguments], capture_output=True, timeout=300, check=False, **options)


def environment() -> dict[str, str]:
    """Return an environment in which shells find the command `cntkio`, and Python as `python`."""
    path = os.pathsep.join([str(_server()), str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "PATH": path}


@functools.cache
def _server() -> Path:
    """Start a server that ends with this process; return the folder of its command."""
    ending = contextlib.ExitStack()
    atexit.register(ending.close)
    folder = Path(ending.enter_context(tempfile.TemporaryDirectory(prefix="cntkio-")))
    address, command = str(folder / "socket"), folder / "cntkio"
    start = [sys.executable, __file__, address]
    server = ending.enter_context(subprocess.Popen(start, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
    assert server.stdout is not None and server.stdout.readline() == b"ready\n"
    command.write_text(_CLIENT.format(python=sys.executable, address=address), encoding="utf-8")
    command.chmod(0o755)
    return folder


def _accept_calls(address: str) -> socket.socket:
    """Return in a fork for each call, with its arguments, folder, environment and streams; exit with standard input.

    The result expects the exit status as text. If it is closed without one, the status is 1.
    """
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(16)
    print("ready", flush=True)
    while listener in select.select([listener, 0], [], [])[0]:
        connection, _ = listener.accept()
        if os.fork() == 0:
            break
        connection.close()
        while os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG):
            pass
    else:
        sys.exit()
    call, streams, *_ = socket.recv_fds(connection, 1 << 20, 3)
    while more := connection.recv(1 << 20):
        call += more
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    listener.close()
    sys.argv[1:], folder, variables = ast.literal_eval(call.decode())
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    return connection


if __name__ == "__main__":
    import cntkio.cli

    assert cntkio.cli.main
    gc.freeze()  # forks leave these objects in the memory that they share
    connection = _accept_calls(sys.argv[1])
    try:
        runpy.run_module("cntkio", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if not isinstance(end.code, int):
            raise
        # The end of an interpreter takes a tenth of a second in a fork, because it changes all memory.
        sys.stdout.flush()
        sys.stderr.flush()
        connection.send(b"%d" % (end.code % 256))
        os._exit(0)
