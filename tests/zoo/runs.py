"""A check of many model types, each in a process of its own: none takes the others with it."""

from __future__ import annotations

import multiprocessing
import resource
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection

MEMORY = 12 * 2**30


def _one(check: Callable[[str], str], model_type: str, told: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    try:
        told.send(check(model_type))
    except BaseException as error:
        told.send(f"{type(error).__name__}: {' '.join(str(error).split())[:160]}")


def each(
    check: Callable[[str], str], model_types: Iterable[str], seconds: float = 30
) -> Iterator[tuple[str, str]]:
    """(model type, what the check returned or the error that it raised, in one line)."""
    fork = multiprocessing.get_context("fork")
    for model_type in model_types:
        hears, told = fork.Pipe(duplex=False)
        process = fork.Process(target=_one, args=(check, model_type, told), daemon=True)
        process.start()
        told.close()
        try:
            yield model_type, (hears.recv() if hears.poll(seconds) else f"over {seconds:g} s")
        except EOFError:
            process.join()
            yield model_type, f"the process ended with {process.exitcode}"
        process.kill()
        process.join()
