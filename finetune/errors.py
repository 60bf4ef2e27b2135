"""The scripts' errors: what was given, what is allowed, and what to do about it.

Called from Python a script raises them. From a shell, `exit_with` makes one line of each.
"""

from __future__ import annotations

import difflib
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from hf_graphattn.shell.main import until_unread

DEBUG = "--debug"  # the flag that shows where an error comes from
WRONG, INTERRUPTED = 2, 130  # exit codes
ERROR = "error: "  # how the line begins that tells an error
STOPPED = (
    "Stopped. Where it had saved checkpoints (--checkpointing_steps) the same command goes on from "
    "the last one with --resume_from_checkpoint last."
)
INSTALL = (
    "The scripts need it: pip install -e '.[finetune]' in their repository, or start them with the "
    "Python that has it."
)
FEW = 4  # names that a question has
FIRST_WORD = 10.0  # seconds in which the first of several processes has told an error and ended


class ToldError(Exception):
    """An error whose message is for the person who asked, and says all that there is to say."""


class Refused(ToldError, ValueError):
    """What was asked for cannot be done; the message is for the person who asked."""


class DivergedError(ToldError, RuntimeError):
    """The loss, the weights or the model's outputs became NaN or infinite."""


class MissingError(ToldError, ImportError):
    """A package or a system is needed that is not here."""


def refusal(argument: str, value: object, allowed: str, remedy: str) -> Refused:
    """The scripts' one form of error.

    Args:
        argument: what is wrong: a flag's name, or what was found in a file.
        value: what was given.
        allowed: what could have been given instead.
        remedy: a sentence that says what a person can do.
    """
    return Refused(f"{argument} is {value!r}; allowed: {allowed}. {remedy}")


def diverged_logits() -> DivergedError:
    """The error of a model whose outputs cannot be scored."""
    return DivergedError("The model's logits are NaN or infinite. Lower learning_rate.")


def meant(given: Iterable[str], known: Iterable[str], otherwise: str = "", sign: str = "") -> str:
    """A question after the known names that look like those given, or what is said otherwise.

    ``sign`` is put before each name.
    """
    names = list(known)
    close = dict.fromkeys(close for name in given for close in _alike(name, names))
    return f"Did you mean {' or '.join(sign + name for name in close)}?" if close else otherwise


def near(name: str) -> str:
    """What to say of a name that nothing was found by, if it looks like a path from here."""
    path = Path(name)
    folder, leaf = path.parent, path.name
    try:
        if path.exists() or not folder.is_dir():
            return ""
        question = meant([leaf], [each.name for each in folder.iterdir()])
    except OSError:  # a folder that may not be read, a name that none can have
        return ""
    if len(path.parts) == 1:  # any name of a repository could be that of a folder here
        return f"As a folder it is not here. {question} " if question else ""
    said = f"The folder {folder} is here, and has no {leaf}. "
    return f"{said}{question} " if question else said


def _alike(given: str, names: Sequence[str]) -> list[str]:
    """The few names that the given one is a part of, word by word: epochs of num_train_epochs.

    Of more than a few those that begin so. Where it is a part of none, those spelt like it.
    """
    words = set(given.lower().replace("-", "_").split("_"))
    found = [name for name in names if words <= set(name.lower().split("_"))]
    if len(found) > FEW:
        found = [name for name in found if name.lower().startswith(given.lower())][:FEW]
    return found or difflib.get_close_matches(given, names)


def exit_with(main: Callable[[], object], stopped: str = STOPPED) -> NoReturn:
    """Call a script's main and end the process; what it returns is the exit code if it is an int.

    An error for the person who asked is one line and exit code 2; `DEBUG` among the flags shows its
    traceback too. Of several processes the first tells it, and the others what it does not know of.
    Any other error is a defect, and keeps its traceback.
    """
    with until_unread():
        sys.exit(_carried_out(main, stopped))


def _carried_out(main: Callable[[], object], stopped: str) -> int:
    try:
        found = main()
    except KeyboardInterrupt:
        _tell(stopped)
        return INTERRUPTED
    except Exception as error:
        if package := _not_installed(error):
            error = MissingError(f"{package} is not installed here. {INSTALL}")
        if not isinstance(error, _told()):
            raise
        if DEBUG in sys.argv:
            traceback.print_exc()
        if os.environ.get("RANK", "0") != "0":
            time.sleep(FIRST_WORD)  # the launcher ends this process once the first has ended
        # torch begins the message with the traceback of a process that reads rows for this one.
        name = f"{type(error).__module__}.{type(error).__qualname__}: "
        _tell(ERROR + str(error).rpartition(name)[2])
        return WRONG
    return found if isinstance(found, int) else 0


def _not_installed(error: BaseException | None) -> str | None:
    """The package that an import has not found; None if one lacks a part: another version."""
    while isinstance(error, ModuleNotFoundError):
        package = (error.name or "").partition(".")[0]
        if package and find_spec(package) is None:
            return package
        error = error.__cause__  # transformers has errors of its own for what others import
    return None


def _told() -> tuple[type[Exception], ...]:
    # Imported for an error alone: a package's first import takes a moment.
    from hf_graphattn.errors import GraphAttentionError
    from tasks.refusals import TaskError

    return ToldError, GraphAttentionError, TaskError


def _tell(text: str) -> None:
    print(" ".join(line.strip() for line in text.splitlines()), file=sys.stderr, flush=True)
