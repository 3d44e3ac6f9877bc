"""A simulator's process. It never imports torch."""

from __future__ import annotations

from multiprocessing.connection import Connection

from offrl.acting.episode import describe, run_episode
from offrl.envs import make_env


def serve(file_descriptor: int) -> None:
    """A worker's life: build the environment, run episodes on request, end with the parent."""
    connection = Connection(file_descriptor)
    try:
        env = make_env(connection.recv())
        while True:
            request, needs_goal = connection.recv()
            try:
                connection.send(("done", run_episode(env, request, connection, needs_goal)))
            except (EOFError, BrokenPipeError):
                return
            except Exception as error:
                connection.send(("error", describe(error)))
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        return
    except Exception as error:
        connection.send(("no env", describe(error)))
