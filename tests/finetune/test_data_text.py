"""Text in every form a person may bring it, cut into blocks and windows without a token lost."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from datasets import Dataset, DatasetDict
from transformers import AutoTokenizer, GPT2Config

import tasks
from finetune.data import text as texts
from finetune.data.text import Blocks, Offsets, Windows
from finetune.lm import SCHEMA
from finetune.models import language
from finetune.settings.language import LanguageDataArguments, LanguageModelArguments
from tasks import lm

SPLITS = {"train": 6, "validation": 3, "test": 3}
LINES = ["the cat <unk> N", "it 's a dog", "no"]


def save_text(folder: Path, config: str, column: str, rows: list[str], layout: str) -> Path:
    """Parquet files in the hub's layout: with its card, of its conversions, or bare."""
    card = ["---", "configs:", f"- config_name: {config}", "  data_files:"]
    for split, count in SPLITS.items():
        name = f"{split}/0000.parquet" if layout == "convert" else f"{split}-00000-of-00001.parquet"
        path = folder / config / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Dataset.from_dict({column: (rows * count)[:count]}).to_parquet(path)
        card += [f"  - split: {split}", f"    path: {config}/{name}"]
    if layout == "card":
        (folder / "README.md").write_text("\n".join([*card, "---", ""]))
    return folder


def load(*, predict: bool = False, **arguments: object) -> tuple[tasks.Task, DatasetDict]:
    return texts.load(LanguageDataArguments(**arguments), predict)


@pytest.fixture(scope="module")
def tokenizer():
    return language.character_tokenizer(["".join(map(chr, range(32, 127)))])


@pytest.mark.parametrize("layout", ["card", "convert", "bare"])
def test_penn_treebank_in_every_layout(tmp_path: Path, tokenizer, layout: str) -> None:
    folder = save_text(tmp_path, "penn_treebank", "sentence", LINES, layout)
    task, rows = load(task_name="ptb", dataset_name=str(folder), predict=True)
    assert {name: len(split) for name, split in rows.items()} == SPLITS
    text = texts.texts(task, rows, tokenizer)["validation"]
    end = tokenizer.eos_token_id
    expected = [i for line in LINES for i in (*tokenizer(line)["input_ids"], end)]
    assert text.tokens.tolist() == expected
    assert text.words == 4 + 4 + 1 + 3


def test_own_tables_end_each_row_with_a_line_break(tmp_path: Path, tokenizer) -> None:
    table = Dataset.from_dict({"number": [1, 2, 3], "body": ["one", "two\n", ""]})
    path = tmp_path / "own.csv"
    table.to_csv(path)
    task, rows = load(train_file=str(path), validation_file=str(path))
    text = texts.texts(task, rows, tokenizer)["train"]
    assert tokenizer.decode(text.tokens) == "one\ntwo\n\n"
    assert text.words is None


def test_a_txt_file_is_kept_as_it_is(tmp_path: Path, tokenizer) -> None:
    path = tmp_path / "own.txt"
    path.write_text("one  two\n\n\tthree\nfour")
    task, rows = load(train_file=str(path), validation_file=str(path), word_level=True)
    text = texts.texts(task, rows, tokenizer)["train"]
    # A tab is not among the characters of this tokenizer.
    assert tokenizer.decode(text.tokens).replace("\ufffd", "\t") == path.read_text()
    assert text.words == 4 + 3


def test_a_folder_with_a_text_column(tmp_path: Path) -> None:
    folder = save_text(tmp_path, "default", "body", LINES, "card")
    task, rows = load(dataset_name=str(folder), text_column="body", max_train_samples=2)
    assert (task.name, task.row_end, len(rows["train"])) == ("own_text", "newline", 2)
    with pytest.raises(ValueError, match=r"without column 'text'.*rows with text; it has body"):
        load(dataset_name=str(folder))


def test_row_ends_and_validation_share_by_flag(tmp_path: Path, tokenizer) -> None:
    path = tmp_path / "own.txt"
    path.write_text("".join(f"line {i}\n" for i in range(10)))
    task, rows = load(train_file=str(path), validation_split_percentage=20, row_end="eos")
    assert (len(rows["train"]), len(rows["validation"])) == (8, 2)
    text = texts.texts(task, rows, tokenizer)["validation"]
    assert tokenizer.decode(text.tokens) == "line 8\n<|endoftext|>line 9\n<|endoftext|>"


def test_random_offsets_reach_all_of_the_text_and_depend_on_seed_and_epoch_alone() -> None:
    torch.manual_seed(5)
    blocks = Blocks(torch.arange(19, dtype=torch.int32), 4)
    sampler = Offsets(blocks)
    assert blocks.left_over == 19 - 4 * 4
    drawn = []
    for epoch in range(200):
        torch.rand(epoch % 3)  # whatever else is drawn
        sampler.set_epoch(epoch)
        rows = [blocks[part]["input_ids"] for part in sampler]
        assert len(rows) == len(sampler) == len(blocks) == 4
        assert all(torch.equal(row, torch.arange(row[0], row[0] + 4)) for row in rows)
        drawn.append([int(row[0]) for row in rows])
    assert {start for epoch in drawn for start in epoch} == set(range(16))
    assert drawn[0] != drawn[1]
    sampler.set_epoch(7)
    assert [part.start for part in sampler] == drawn[7]


@pytest.mark.parametrize("total", [2, 16, 17, 18, 71])
@pytest.mark.parametrize("stride", [None, 1, 5, 16])
def test_windows_score_each_token_once(total: int, stride: int | None) -> None:
    windows = Windows(torch.arange(total, dtype=torch.int32), 16, stride)
    scored = []
    for i in range(len(windows)):
        ids, labels = windows[i]["input_ids"], windows[i]["labels"]
        kept = labels != -100
        assert kept.any()
        assert len(ids) <= 16
        assert torch.equal(labels[kept], ids[kept] + 1)
        if stride is not None and i:
            assert int(kept.int().argmax()) == 16 - stride
        scored += labels[kept].tolist()
    firsts = set(range(0, total, 16)) if stride is None else {0}
    assert scored == [i for i in range(total) if i not in firsts]


def test_character_tokenizer_survives_its_folder(tmp_path: Path) -> None:
    text = "To be, or not\n\n to be:\ttést. é  , do n't .\r\n"
    made = language.character_tokenizer([text[:9], None, text[9:]])
    made.save_pretrained(tmp_path)
    GPT2Config().save_pretrained(tmp_path)
    found = AutoTokenizer.from_pretrained(tmp_path)
    ids = found(text)["input_ids"]
    assert ids == made(text)["input_ids"]
    assert len(ids) == len(text)
    assert found.decode(ids) == text
    assert found("Z")["input_ids"] == [found.unk_token_id]


def test_an_untrained_configuration_and_what_is_none_in_it(tokenizer) -> None:
    changes = "n_layer=2,resid_pdrop=0.2,n_inner=2048"
    arguments = LanguageModelArguments(
        model_type="gpt2", tokenizer_name="char", config_overrides=changes
    )
    config = language.load_config(arguments, tokenizer)
    assert (config.n_layer, config.resid_pdrop, config.n_inner) == (2, 0.2, 2048)
    assert config.vocab_size == len(tokenizer)
    assert config.eos_token_id == tokenizer.eos_token_id


def test_refusals_of_configurations(tokenizer, tmp_path: Path) -> None:
    start = {"tokenizer_name": "char"}
    GPT2Config(graph_attn={"variant": "gfsa"}).save_pretrained(tmp_path / "patched")
    GPT2Config(vocab_size=7).save_pretrained(tmp_path / "small")
    cases = [
        ({"model_type": "gpt3"}, "model_type is 'gpt3'; allowed: a type that transformers has"),
        ({"model_type": "gpt2", "config_overrides": "n_embdx=1"}, r"no attribute 'n_embdx'"),
        ({"model_type": "gpt2", "config_overrides": "n_embd"}, "allowed: name=value, parted by"),
        ({"model_type": "gpt2", "config_overrides": "n_inner=2.5"}, "n_inner.* expected int, got"),
        ({"model_type": "gpt2", "config_overrides": "n_inner"}, "config_overrides is .*n_inner"),
        ({"config_name": str(tmp_path / "patched")}, "this one is patched with gfsa"),
        ({"model_name_or_path": str(tmp_path / "small")}, "a tokenizer of at most 7 tokens"),
    ]
    for arguments, message in cases:
        with pytest.raises(ValueError, match=message):
            language.load_config(LanguageModelArguments(**start | arguments), tokenizer)


def test_refusals_of_sizes(tokenizer) -> None:
    task = tasks.get("demo", "lm")
    sliding = {"eval_protocol": "sliding", "stride": 40}
    with pytest.raises(ValueError, match="block_size is 65; allowed: 2 to 64, the model's posi"):
        texts.block_size(LanguageDataArguments(block_size=65), tokenizer, 64)
    with pytest.raises(ValueError, match="stride is 40; allowed: 1 to 32, the block_size"):
        texts.block_size(LanguageDataArguments(block_size=32, **sliding), tokenizer, 64)
    assert texts.block_size(LanguageDataArguments(), tokenizer, 64) == 64
    assert texts.block_size(LanguageDataArguments(), tokenizer, None) == 1024
    text = texts.Text(torch.zeros(9, dtype=torch.int32), None)
    with pytest.raises(ValueError, match="is '9 tokens'; allowed: block_size 16 or more"):
        texts.training_blocks(task, {"train": text, "validation": text}, 16)
    both = {"train": text, "validation": texts.Text(text.tokens[:1], None)}
    start = {"model_type": "gpt2", "tokenizer_name": "char"}
    settings = SCHEMA.run({"output_dir": ".", **start})
    with pytest.raises(ValueError, match="of task demo is '1 tokens'; allowed: 2 tokens or more"):
        texts.loaders(settings, task, both, texts.training_blocks(task, both, 4), {})


def test_refusals_of_sources(tmp_path: Path) -> None:
    words, numbers = tmp_path / "own.txt", tmp_path / "own.csv"
    words.write_text("some words\n")
    numbers.write_text("number,other\n1,2\n")
    files = {"train_file": str(numbers), "validation_file": str(numbers)}
    _, rows = load(text_column="number", **files)
    assert rows["train"][:] == {"number": ["1"]}  # text, since it is named so
    cases = [
        ({}, "task_name is None; allowed: ptb, wikitext2, wikitext103, demo. Choose one"),
        ({"task_name": "cola"}, "known tasks for finetune/lm.py: ptb, .*Run it with finetune/glue"),
        ({"train_file": str(words)}, "validation_split_percentage is 5; .*, or validation data"),
        ({"train_file": str(numbers)}, "text_column is None; .* columns: number, other"),
        (
            {"task_name": "demo", "validation_split_percentage": 50},
            "validation_split_percentage is 50; allowed: None with data that has validation",
        ),
        (
            {"train_file": str(words), "validation_split_percentage": 50},
            "validation_split_percentage is 50; allowed: a share that leaves rows on both sides",
        ),
        ({"task_name": "ptb", "dataset_name": str(tmp_path)}, "a folder with .*penn_treebank"),
        (
            {"task_name": "ptb", "train_file": str(words), "validation_file": str(words)},
            "without column 'sentence'.*it has text",
        ),
    ]
    for arguments, message in cases:
        with pytest.raises(ValueError, match=message):
            load(**arguments)


def test_words_of_a_row() -> None:
    assert [lm.words(line, "eos") for line in LINES] == [5, 5, 2]
    assert [lm.words(line, "newline") for line in ("\n", " = Title = \n")] == [1, 4]
    assert lm.words("no end", "none") == 2
