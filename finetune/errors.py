"""The scripts' errors: what was given, what is allowed, and what to do about it.

Called from Python a script raises them. From a shell, `exit_with` makes one line of each.
"""

from __future__ import annotations

import difflib
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from hf_graphattn.shell.main import until_unread
from hf_graphattn.version import how_to_install

DEBUG = "--debug"  # the flag that shows where an error comes from
WRONG, INTERRUPTED = 2, 130  # exit codes
ERROR = "error: "  # the line of an error begins so
STOPPED = (
    "Stopped. Where it had saved checkpoints (--checkpointing_steps) the same command goes on from "
    "the last one with --resume_from_checkpoint last."
)
INSTALL = "The scripts need it: {}, or start them with the Python that has it."
# Of packages that are not in the extra finetune.
EXTRAS = {"optuna": "sweep", "distributed": "dask", "submitit": "slurm", "torchvision": "images"}
EXTRAS |= {"PIL": "images", "jiwer": "speech", "soundfile": "speech"}
EXTRAS |= {"matplotlib": "plots", "seaborn": "plots"}
FEW = 4  # names in a question
FIRST = 10.0  # seconds: the launcher ends the other processes once the first has ended
LONGEST_CELL = 60
MOST_NAMES = 20


class UserError(Exception):
    """An error whose message is for the person who asked, and says all that there is to say."""


class Refused(UserError, ValueError):
    """What was asked for cannot be done; the message is for the person who asked."""


class DivergedError(UserError, RuntimeError):
    """The loss, the weights or the model's outputs became NaN or infinite."""


class MissingError(UserError, ImportError):
    """A package or a system is needed that is not here."""


class Plain(str):
    """Text that `refusal` shows without quotes."""

    __slots__ = ()
    __repr__ = str.__str__


def refusal(argument: str, value: object, allowed: str, remedy: str) -> Refused:
    """The scripts' one form of error, on one line whatever a file's cells and names hold.

    Args:
        argument: what is wrong: a flag's name, or a part of a file.
        value: its value.
        allowed: the values that it may have.
        remedy: a sentence that says what a person can do.
    """
    return Refused(one_line(f"{argument} is {value!r}; allowed: {allowed}. {remedy}"))


def one_line(text: str) -> str:
    """The text without line breaks and other characters that cannot be printed."""
    spaced = re.sub(r"[\n\r\t]+", " ", text)
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in spaced)


def cell(value: object) -> object:
    """A cell's value, cut where it is long."""
    whole = repr(value[: LONGEST_CELL + 1] if isinstance(value, str | bytes) else value)
    return value if len(whole) <= LONGEST_CELL else Plain(f"{whole[:LONGEST_CELL]}...")


def joined(names: Iterable[object]) -> str:
    """The names with commas between them; of many the first ones."""
    known = [str(name) for name in names]
    short = [name if len(name) <= LONGEST_CELL else f"{name[:LONGEST_CELL]}..." for name in known]
    more = [f"and {len(known) - MOST_NAMES} more"] if len(known) > MOST_NAMES else []
    return one_line(", ".join(short[:MOST_NAMES] + more))


def reason(error: BaseException) -> str:
    """Another library's error on one line; of errors within errors the first one."""
    from tasks import refusals  # imported for an error alone: it takes a moment

    while error.__cause__ is not None:
        error = error.__cause__
    return one_line(refusals.reason(error))


def diverged_logits() -> DivergedError:
    """The error of a model whose outputs cannot be scored."""
    return DivergedError("The model's logits are NaN or infinite. Lower learning_rate.")


def did_you_mean(
    names: Iterable[str], known: Iterable[str], otherwise: str = "", sign: str = ""
) -> str:
    """A question with the known names that look like these, or else ``otherwise``.

    ``sign`` is put before each name.
    """
    every = list(known)
    close = dict.fromkeys(close for name in names for close in _alike(name, every))
    return f"Did you mean {' or '.join(sign + name for name in close)}?" if close else otherwise


def near(name: str) -> str:
    """A question with the names like that of a path which is not there; empty if there are none."""
    path = Path(name)
    try:
        question = did_you_mean([path.name], [] if path.exists() else os.listdir(path.parent))
    except OSError:  # no such folder, one that may not be read, a name that none can have
        return ""
    return f"{question} " if question else ""


def _alike(name: str, known: Sequence[str]) -> list[str]:
    """The few known names that have all parts of this one, as num_train_epochs has epochs.

    Of many those that begin with it; where there are none, those spelt like it.
    """
    parts = set(name.lower().replace("-", "_").split("_"))
    having = [each for each in known if parts <= set(each.lower().split("_"))]
    if len(having) > FEW:
        having = [each for each in having if each.startswith(name.lower())][:FEW]
    return having or difflib.get_close_matches(name, known)


def exit_with(main: Callable[[], object], stopped: str = STOPPED) -> NoReturn:
    """Call a script's main and end the process; what it returns is the exit code if it is an int.

    An error for people is one line and exit code 2; `DEBUG` among the flags prints its traceback
    too. Of several processes the first prints it, and the others what it does not know of. Any
    other error is a defect, and keeps its traceback.
    """
    with until_unread():
        try:
            result = main()
        except KeyboardInterrupt:
            _print_line(stopped)
            sys.exit(INTERRUPTED)
        except Exception as error:
            if package := _not_installed(error):
                how = INSTALL.format(how_to_install(EXTRAS.get(package, "finetune")))
                error = MissingError(f"{package} is not installed here. {how}")
            if not _is_for_people(error):
                raise
            if DEBUG in sys.argv:
                traceback.print_exc()
            if os.environ.get("RANK", "0") != "0":
                time.sleep(FIRST)
            # torch puts the traceback of a process that reads rows for this one before the message.
            name = f"{type(error).__module__}.{type(error).__qualname__}: "
            _print_line(ERROR + str(error).rpartition(name)[2])
            sys.exit(WRONG)
        sys.exit(result if isinstance(result, int) else 0)


def _not_installed(error: BaseException | None) -> str | None:
    """The package that an import has not found; None if one lacks a part: another version."""
    while isinstance(error, ModuleNotFoundError):
        package = (error.name or "").partition(".")[0]
        if package and find_spec(package) is None:
            return package
        error = error.__cause__  # transformers has errors of its own for what others import
    return None


def _is_for_people(error: Exception) -> bool:
    # Imported for an error alone: a package's first import takes a moment.
    from hf_graphattn.errors import GraphAttentionError
    from tasks.refusals import TaskError

    return isinstance(error, UserError | GraphAttentionError | TaskError)


def _print_line(text: str) -> None:
    print(" ".join(line.strip() for line in text.splitlines()), file=sys.stderr, flush=True)
