"""How a card shows a model in use: code that runs as it is printed, and what it printed here.

The code that is run for the output is the code that is shown, but for where the model and its
processor come from: both are at hand.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoProcessor, PreTrainedTokenizerBase
from transformers.models.auto import modeling_auto

from .adapters import base_model, is_adapted
from .checkpoints import find_file
from .errors import refusal
from .filters import is_patched, read_config
from .parallel import is_spread, own_class
from .saving import auto_classes
from .variants.base import is_integer

logger = logging.getLogger("hf_graphattn")

IMAGE, SOUND = "example.png", "example.wav"  # what an example is called in the repository
PROCESSOR_FILES = ("tokenizer_config.json", "preprocessor_config.json", "processor_config.json")
PACKAGES = {"from PIL": "pillow", "import soundfile": "soundfile"}
MADE_UP = 2  # tokens at most: T5's, DeBERTa's and others' have a blank or an unknown one
SAVE_ONE = "Save the model's there: tokenizer.save_pretrained(folder)."
FEW = 10  # labels that code names
NEW_TOKENS = 20

# What is printed of a model's outputs, by the hub's word for what the model is for.
LABEL = """\
shares = model(**inputs).logits.softmax(-1)[0]
best = shares.argmax().item()
print(model.config.id2label[best], f"{{shares[best]:.3f}}")"""
SCORE = 'print(f"{model(**inputs).logits.item():.3f}")'
LABELS = """\
best = model(**inputs).logits[0].argmax(-1).tolist()
print([model.config.id2label[label] for label in best])"""
MASKED = """\
logits = model(**inputs).logits[inputs["input_ids"] == tokenizer.mask_token_id]
print(tokenizer.decode(logits.argmax(-1)))"""
WRITTEN = """\
tokens = model.generate(**inputs, max_new_tokens={count}, do_sample=False{more})
print({name}.decode(tokens[0], skip_special_tokens=True))"""
HEARD = """\
tokens = model(**inputs).logits.argmax(-1)
print(processor.batch_decode(tokens)[0])"""
TEXTS = {
    "text-classification": LABEL,
    "token-classification": LABELS,
    "fill-mask": MASKED,
    "text-generation": WRITTEN,
    "text2text-generation": WRITTEN,
}
SOUNDS = {"audio-classification": LABEL, "automatic-speech-recognition": HEARD}
PICTURES = {"image-classification": LABEL}
PRINTED = TEXTS | SOUNDS | PICTURES
PROCESSORS = dict.fromkeys(TEXTS, "AutoTokenizer") | {
    "image-classification": "AutoImageProcessor",
    "audio-classification": "AutoFeatureExtractor",
    "automatic-speech-recognition": "AutoProcessor",
}


@dataclass(frozen=True)
class Code:
    """Code in parts: what it imports, how it loads, and what it does with what is loaded."""

    imports: tuple[str, ...]
    loading: str
    use: str

    def __str__(self) -> str:
        modules = sorted(self.imports, key=lambda line: (line.startswith("from"), line))
        parts = ["\n".join(modules), "import hf_graphattn as ga", self.loading]
        return "\n\n".join([*filter(None, parts), *filter(None, [self.use])])


def usage(
    model: nn.Module,
    task: str | None,
    repo_id: str,
    base: str | None,
    processor: Any = None,
    example: Any = None,
) -> str:
    """A section of Markdown.

    Args:
        task: the hub's word for what the model is for.
        repo_id: where the model is loaded from.
        base: hub id of the model that it was made from, whose processor is used if none is given.
        processor: its tokenizer or processor, which lies beside the model.
        example: an input, `checked_example`.

    Raises:
        GraphAttentionError: the example does not fit the model.
    """
    source = repo_id if processor is not None else base
    code = _code(model, task, repo_id, base, source, example)
    packages = ["hf_graphattn", *(["peft"] if is_adapted(model) else [])]
    packages += [package for module, package in PACKAGES.items() if module in f"{code}"]
    parts = ["## Usage", f"`pip install {' '.join(packages)}`, then:", fenced(f"{code}", "python")]
    if example is not None and processor is not None and not is_spread(model):
        found = _output(model, code, processor, example)
        if found is not None:
            parts += ["When this card was written, that printed:", fenced(found, "text")]
    return "\n\n".join(parts)


def checked_example(task: str | None, example: Any) -> Any:
    """`example`, if a model for this task takes such an input; None if no code is known for it.

    Raises:
        GraphAttentionError: it is another kind of input.
    """
    if example is None or task not in PRINTED:
        return None
    if task in TEXTS:
        texts = [example] if isinstance(example, str) else example
        known = isinstance(texts, (list, tuple)) and all(isinstance(t, str) and t for t in texts)
        if known and 1 <= len(texts) <= 2:
            return example
        raise refusal("example", type(example).__name__, f"for {task} a text, or a pair of texts")
    if task in PICTURES:
        if hasattr(example, "convert") and hasattr(example, "save"):
            return example
        raise refusal("example", type(example).__name__, f"for {task} an image of Pillow's")
    if isinstance(example, tuple) and len(example) == 2 and is_integer(example[1]):
        return example
    allowed = f"for {task} a pair: samples, and how many there are in a second"
    raise refusal("example", type(example).__name__, allowed)


def save_example(example: Any, folder: Path) -> None:
    """Write an image or a sound to the file from which the card's code reads it."""
    if hasattr(example, "save"):
        example.save(folder / IMAGE)
    elif isinstance(example, tuple) and is_integer(example[-1]):
        _soundfile().write(folder / SOUND, *example)


def processor_of(path: str) -> Any:
    """The tokenizer or processor that lies beside a model; None if there is none.

    Without a file of its own transformers would make one up from the model's type.
    """
    if any(find_file(path, name, {}) for name in PROCESSOR_FILES):
        return AutoProcessor.from_pretrained(path)
    return None


def is_made_up(tokenizer: Any) -> bool:
    """Whether it has hardly a token that is not special, as those that transformers makes up."""
    if not isinstance(tokenizer, PreTrainedTokenizerBase):  # several in one, of RAG
        return False
    return len(tokenizer) - len(set(tokenizer.all_special_ids)) <= MADE_UP


def own_auto_class(model: Any) -> str | None:
    """The Auto class of transformers that gives a model of this class for its config."""
    for name in auto_classes(model):
        found = getattr(modeling_auto, name)._model_mapping[type(model.config)]
        if own_class(model) in (found if isinstance(found, (list, tuple)) else [found]):
            return name
    return None


def fenced(text: str, language: str) -> str:
    """A block of Markdown, whatever the text holds."""
    longest = max((len(found) for found in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def _code(
    model: Any, task: str | None, repo_id: str, base: str | None, source: str | None, example: Any
) -> Code:
    names, lines = [], []
    if not is_adapted(model):
        lines.append(f'model = ga.from_pretrained("{repo_id}")')
    else:
        inner = base_model(model)
        names.append(own_auto_class(inner) or "AutoModel")
        path = f'"{base}"' if base else '"FOLDER"'
        if not base:
            lines.append("# FOLDER is the base model's: no hub is known to have it.")
        lines.append(f"base = {names[0]}.from_pretrained({path}{_labels(inner, task)})")
        lines.append(f'model = ga.load_peft(base, "{repo_id}")')
    if source is None or task not in PRINTED:
        return Code(_imports(names), "\n".join(lines), "")
    processor = PROCESSORS[task]
    backend = ', backend="pil"' if task in PICTURES else ""
    variable = "tokenizer" if task in TEXTS else "processor"
    lines.append(f'{variable} = {processor}.from_pretrained("{source}"{backend})')
    more, inputs = _inputs(base_model(model), task, repo_id, example)
    use = f"{inputs}\n{_outputs(base_model(model), task)}"
    return Code((*_imports([*names, processor]), *more), "\n".join(lines), use)


def _imports(names: Sequence[str]) -> tuple[str, ...]:
    return (f"from transformers import {', '.join(sorted(names))}",) if names else ()


def _labels(model: Any, task: str | None) -> str:
    """What makes a plain base's new head as large as the adapter's, with its labels."""
    labels = model.config.id2label
    if not (task or "").endswith("classification"):
        return ""
    return f", num_labels={len(labels)}" if len(labels) > FEW else f", id2label={labels}"


def _inputs(model: Any, task: str, repo_id: str, example: Any) -> tuple[tuple[str, ...], str]:
    """What is imported for the lines that make the inputs, and these lines."""
    kind = "" if task in TEXTS else ", model.dtype"
    end = f', return_tensors="pt").to(model.device{kind})'
    if task in TEXTS:
        given = [example] if isinstance(example, str) else example
        texts = ", ".join(json.dumps(text, ensure_ascii=False) for text in given or ())
        if not texts:
            mask = " {tokenizer.mask_token}" if task == "fill-mask" else ""
            texts = f'{"f" * bool(mask)}"Attention is a graph{mask}."'
        return (), f"inputs = tokenizer({texts}{end}"
    files = ("from huggingface_hub import hf_hub_download",)
    if task in PICTURES:
        imports: tuple[str, ...] = ("from PIL import Image", *files)
        line = f'image = Image.open(hf_hub_download("{repo_id}", "{IMAGE}"))'
        if example is None:
            mode = "L" if getattr(model.config, "num_channels", 3) == 1 else "RGB"
            imports, line = imports[:1], f'image = Image.new("{mode}", (64, 64))  # yours'
        return imports, f"{line}\ninputs = processor(image{end}"
    imports = ("import soundfile", *files)
    line = f'wave, rate = soundfile.read(hf_hub_download("{repo_id}", "{SOUND}"))'
    if example is None:
        extractor = "processor" if task == "audio-classification" else "processor.feature_extractor"
        line = f"rate = {extractor}.sampling_rate\nwave = numpy.zeros(rate)  # yours"
        imports = ("import numpy",)
    return imports, f"{line}\ninputs = processor(wave, sampling_rate=rate{end}"


def _outputs(model: Any, task: str) -> str:
    """The lines that print what the model makes of the inputs."""
    if task == "text-classification" and model.config.num_labels == 1:
        return SCORE
    lines = PRINTED[task]
    if task == "automatic-speech-recognition" and model.can_generate():
        lines = WRITTEN
    # An example may fill the other half of what the model can read.
    most = getattr(model.config, "max_position_embeddings", None) or 2 * NEW_TOKENS
    return lines.format(
        name="tokenizer" if task in TEXTS else "processor",
        count=min(NEW_TOKENS, most // 2),
        more=", use_cache=False" if is_patched(model) and read_config(model).place else "",
    )


def _output(model: nn.Module, code: Code, processor: Any, example: Any) -> str | None:
    """What the code prints with this model; None, and a warning, if it cannot be run here."""
    names: dict[str, Any] = {}
    printed = io.StringIO()
    with tempfile.TemporaryDirectory() as folder:
        try:
            save_example(example, Path(folder))
            exec("\n".join(code.imports), names)  # lines from above, the example as a literal
            names |= {"model": model, "tokenizer": processor, "processor": processor}
            names["hf_hub_download"] = lambda _, name: str(Path(folder, name))
            with contextlib.redirect_stdout(printed), torch.no_grad(), _evaluating(model):
                exec(code.use, names)
        except Exception as error:  # of whatever the model is made of
            logger.warning(f"the card shows no output, since its code failed here: {error!r}")
            return None
    return printed.getvalue().rstrip("\n")


@contextlib.contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """In this context no dropout; each module's mode is then as it was."""
    before = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in before.items():
            module.training = training


def _soundfile() -> Any:
    try:
        import soundfile
    except ImportError as error:
        raise ImportError("a sound as example needs soundfile: pip install soundfile") from error
    return soundfile
