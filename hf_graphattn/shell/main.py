"""`graphattn`: the library's tables, cards and diagnoses, from a shell; see `graphattn --help`.

torch and transformers are imported when a command runs: `--help` and wrong arguments need neither.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import hf_graphattn as ga
from hf_graphattn.errors import GraphAttentionError
from hf_graphattn.version import __version__

SUPPORTED = """Which attention modules of a model can have a filter. Only the config is read: the
weights are not needed."""
REPORT = """What a patched model has: a row for each self-attention module, with the values of its
scalars and the backend that computes it here; and about what the filters cost in training."""
CARD = "The model card of a patched model, as push_to_hub writes it."
DIAGNOSE = """Look inside one or several models: what attention and graph filters do to the
tokens of a text, or to the patches of images. Writes one HTML page with every figure in it, the
models side by side."""
FINE_TUNING = """\
to fine-tune, in your own loop or transformers' Trainer:
  ga.patch_model(model, ga.GFSAConfig())  # in place; starts as the model was, and learns from there
  groups = ga.optimizer_groups(model, 2e-5, filter_learning_rate=1e-2)  # for an optimizer of torch
or with the scripts of the project's repository: finetune/glue.py --help"""
PATCHED = "a patched model's folder, or its hub id"
UNREAD = 141  # the exit code of a shell for a command whose output is not read


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command. An argument that it cannot use ends it with one line and exit status 2."""
    parser = _parser()
    with until_unread():
        try:
            options = parser.parse_args(arguments)
            options.run(options)
        except BrokenPipeError:
            raise
        except (GraphAttentionError, OSError, ImportError) as error:
            parser.error(str(error))


@contextmanager
def until_unread() -> Iterator[None]:
    """End the process silently once its output is not read any more, as behind `| head`.

    A process that ends in here with an exit code of its own keeps that.
    """
    ended: BaseException | None = None
    try:
        yield
    except (SystemExit, BrokenPipeError) as error:  # a SystemExit of --help too
        ended = error
    try:
        if sys.stdout is not None:  # it is None where a shell closed it: >&-
            # One more character shows whether the pipe that broke is stdout or another one.
            print(end="\n" if isinstance(ended, BrokenPipeError) else "", flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes it again
        sys.exit(getattr(ended, "code", None) or UNREAD)
    if ended is not None:
        raise ended


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {' '.join(message.split())}\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="graphattn",
        description="Graph-filter attention, from a shell.",
        epilog=FINE_TUNING,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(metavar="command", required=True)

    def command(name: str, about: str, run: Callable[[argparse.Namespace], None]) -> Any:
        subparser = commands.add_parser(name, description=about, help=about.split(".")[0])
        subparser.set_defaults(run=run)
        return subparser.add_argument

    add = command("supported", SUPPORTED, _supported)
    add("model", help="a folder or a hub id, of a plain or a patched model")
    add("--revision", help="branch, tag or commit on the hub", default="main")

    add = command("report", REPORT, _report)
    add("model", help=PATCHED)

    add = command("card", CARD, _card)
    add("model", help=PATCHED)
    add("--repo_id", help="user/name, which the card shows how to load", required=True)
    add("--license", help="its id on the hub (default: the base model's, if known)")
    made_from = "hub id of the model that this was made from (default: as it was patched)"
    add("--base_model", help=made_from)
    add("--example", help="a text, which the card's code gives to the model", metavar="TEXT")
    add("--output", help="write it to this file", metavar="FILE")

    _add_diagnose(command("diagnose", DIAGNOSE, _diagnose))
    return parser


def _add_diagnose(add: Callable[..., Any]) -> None:
    several = "; repeat it to compare models"
    path = "a saved model's folder with its tokenizer or image processor, or a hub id"
    add("--model", help=path + several, action="append", required=True, metavar="PATH")
    add("--text", help="UTF-8 text, one sequence in each line", metavar="FILE")
    images = "in the place of a text: images in a folder and its folders, evenly over their names"
    add("--images", help=images, metavar="FOLDER")
    whole = "take the file as one text, cut into sequences of --max_length"
    add("--whole_text", help=whole, action="store_true")
    length = "tokens of a text's sequence; the cost is cubic (default: 128)"
    add("--max_length", help=length, type=positive_integer, default=128)
    count = "how many sequences are read (default: 16)"
    add("--max_sequences", help=count, type=positive_integer, default=16)
    size = "sequences in one forward pass (default: 8)"
    add("--batch_size", help=size, type=positive_integer, default=8)
    device = "where the model runs; all else runs on the CPU (default: cuda, if there is one)"
    add("--device", help=device)
    folder = "write the page there, as diagnosis.html (default: here)"
    add("--output_dir", help=folder, metavar="FOLDER")
    add("--output", help="the page, as a file of any name", metavar="FILE")
    add("--json", help="write the numbers to this file too", metavar="FILE")


def positive_integer(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return number


def _supported(options: argparse.Namespace) -> None:
    from hf_graphattn.loading import outline

    model, config = outline(options.model, options.revision)
    print(ga.supported(model))
    if config is not None:
        print(f"{options.model} is patched already, with {config}: graphattn report shows it.")


def _report(options: argparse.Namespace) -> None:
    print(ga.report(ga.from_pretrained(options.model)))


def _card(options: argparse.Namespace) -> None:
    from hf_graphattn.loading import processor_of
    from hf_graphattn.model.save import checked_id

    repo_id = checked_id("--repo_id", options.repo_id)  # before the weights are read
    model = ga.from_pretrained(options.model)
    about = {name: getattr(options, name) for name in ("license", "base_model", "example")}
    card = ga.model_card(model, repo_id, tokenizer=processor_of(options.model), **about)
    if options.output is None:
        print(card)
    else:
        card.save(options.output)
        print(f"wrote {options.output}")


def _diagnose(options: argparse.Namespace) -> None:
    from .diagnose import run

    run(options)
