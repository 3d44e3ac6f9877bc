"""A process that reads batches ahead, and the parent's end of it."""

import atexit
import os
import pickle
import signal
import socket
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing import Process
from typing import Any

import torch
from torch import Tensor

from offrl.processes import FOR_THE_PARENT, end_with, exit_status
from offrl.tree import map_leaves

Batches = Iterator[dict[str, Any]]


class Reader:
    """Gives the batches of ``read()``, which it calls in a process of its own.

    Readers share nothing, not even a lock, so that one that is killed leaves all others as they
    were. Batches come through a socket, whose size is how far one reads ahead.
    """

    def __init__(self, read: Callable[[], Batches]):
        own_end, other_end = socket.socketpair()
        self._batches = own_end.makefile("rb")
        arguments = (read, other_end, os.getpid())
        self._process = Process(target=_serve, args=arguments, daemon=True)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, FOR_THE_PARENT)
        try:
            with own_end, other_end:
                self._process.start()
            atexit.register(self.close)  # a program may end while it reads
        except OSError as error:
            raise OSError(
                f"no process could be started to read data ({error.strerror}); lower "
                "train.num_data_workers"
            ) from None
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def __next__(self) -> dict[str, Any]:
        """Raises what reading raised, and ``ChildProcessError`` if the process ended."""
        try:
            batch = pickle.load(self._batches)
        except (EOFError, OSError, pickle.UnpicklingError):
            self._process.join()
            raise ChildProcessError(
                f"a process that reads data ended ({exit_status(self._process.exitcode or 0)}); "
                "if memory is short, lower train.num_data_workers"
            ) from None
        if isinstance(batch, Exception):
            raise batch
        return map_leaves(torch.from_numpy, batch)

    def close(self) -> None:
        atexit.unregister(self.close)
        self._process.kill()
        self._process.join()
        self._batches.close()


def _serve(read: Callable[[], Batches], end: socket.socket, parent: int) -> None:
    end_with(parent)
    torch.set_num_threads(1)  # those of OpenMP do not survive a fork
    with suppress(OSError), end.makefile("wb") as file:  # nobody wants any more

        def send(message: Any) -> None:
            pickle.dump(message, file, protocol=pickle.HIGHEST_PROTOCOL)
            file.flush()

        try:
            for batch in read():
                send(map_leaves(Tensor.numpy, batch))
        except (ValueError, OSError) as error:  # in words
            send(error)
        except Exception:
            send(RuntimeError(f"in a process that reads data:\n{traceback.format_exc()}"))
