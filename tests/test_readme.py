"""What README and the pages of docs/ show runs as it stands there, and says what was measured."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import shown

from finetune.experiments import analyze
from finetune.experiments.analyze import ArmResult
from hf_graphattn.model.report import EXTRA
from hf_graphattn.variants import base as registry
from hf_graphattn.variants import variant_configs
from tools import figures, picture

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TEXTS = {path.name: path.read_text("utf-8") for path in PAGES}


OTHERS = ("libraries.md", "exporting.md")  # each section has a library of its own
SECTIONS = {
    name: text
    for page in OTHERS
    for name, text in re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", TEXTS[page], re.M | re.S)
}
RUN = [name for name, text in TEXTS.items() if "```python" in text and name not in OTHERS]


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.full if "ONNX" in name else ())  # a minute
        for name, text in SECTIONS.items()
        if "```python" in text
    ],
)
def test_a_section_runs_where_its_library_is(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for package in re.findall(r"^(?:from|import) (trl|lm_eval|onnx\w*)", SECTIONS[name], re.M):
        pytest.importorskip(package)
    (tmp_path / "finetune").symlink_to(ROOT / "finetune")
    monkeypatch.chdir(tmp_path)
    shown.run(SECTIONS[name], name)


@pytest.mark.parametrize("page", RUN)
def test_a_page_prints_what_it_shows(
    page: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "finetune").symlink_to(ROOT / "finetune")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_CONFIGS", dict(registry._CONFIGS))  # a page registers one
    shown.run(TEXTS[page], page)


@pytest.mark.parametrize("page", [name for name, text in TEXTS.items() if shown.has_commands(text)])
def test_the_commands_of_a_page_are_read_as_they_stand(
    page: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "finetune").symlink_to(ROOT / "finetune")
    for folder in ("png/train", "png/validation", "recordings"):
        (tmp_path / folder).mkdir(parents=True)
    for file in ("train.csv", "validation.csv", "train.txt", "validation.txt"):
        (tmp_path / file).touch()
    monkeypatch.chdir(tmp_path)
    for words in shown.commands(TEXTS[page]):
        shown.read(words)


def test_what_a_page_shows_can_be_wrong() -> None:
    """The checks above find an output, an error, a command and a flag that are not so."""
    page = '```python\nprint("one")\n```\n\n```text\n{}\n```\n'
    shown.run("\n" + page.format("o..."), "a page")
    with pytest.raises(AssertionError, match="and this is printed:\none"):
        shown.run("\n" + page.format("two"), "a page")
    number = '```python\nprint("about", 2.0)\n```\n\n```text\nabout {}\n```\n'
    shown.run("\n" + number.format("2.01"), "a page")
    with pytest.raises(AssertionError, match=r"and this is printed:\nabout 2\.0"):
        shown.run("\n" + number.format("2.1"), "a page")
    for following in ("", "\n```text\n...\n```\n"):
        with pytest.raises(ZeroDivisionError):
            shown.run(f"\n```python\n1 / 0\n```\n{following}", "a page")
    error = "\n```text\nZeroDivisionError: division by zero\n```\n"
    shown.run(f"\n```python\n1 / 0\n```\n{error}", "a page")
    shown.run("\n<!-- not run: why -->\n```python\n1 / 0\n```\n", "a page")
    for line in ("make nothing", "ls", "graphattn report", "pip install -e .[none]"):
        (words,) = shown.commands(f"\n```bash\n{line}\n```\n")
        with pytest.raises((AssertionError, SystemExit)):
            shown.read(words)


def test_links_between_pages_lead_somewhere() -> None:
    for path in PAGES:
        for link in re.findall(r"\]\((?!https?://|#)([^)\s#]+)", TEXTS[path.name]):
            assert (path.parent / link).exists(), (path.name, link)


def test_readme_is_short() -> None:
    assert len(README.splitlines()) <= 120
    example = re.search(r"```python\n(.*?)```", README, re.DOTALL)[1]
    assert len(example.strip().splitlines()) <= 20


def test_its_picture_is_drawn_from_committed_numbers(tmp_path: Path) -> None:
    picture.main([str(tmp_path / "overview.png")])
    assert (tmp_path / "overview.png").stat().st_size > 10_000
    assert "(docs/overview.png)" in README
    figures.main([str(tmp_path / "figures.png")])
    assert (tmp_path / "figures.png").stat().st_size > 10_000


def test_its_make_targets_exist():
    targets = re.findall(r"^make (\w+)", README, re.MULTILINE)
    assert {"demo", "test"} <= set(targets)


def _row(text: str, begins: str) -> list[str]:
    """The cells of the one row of a page's tables that begins so."""
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {begins}")]
    cells = line.replace("\\|", "\0").strip("|").split("|")
    return [cell.strip().replace("\0", "\\|") for cell in cells]


def test_each_variant_is_in_the_tables():
    """README's has what the table of docs/filters.md has, but for one column."""
    for name, config in variant_configs().items():
        row, short = (_row(text, f"`{name}` |") for text in (TEXTS["filters.md"], README))
        assert row[1].startswith(f"`{config.__name__}(")
        assert short == [*row[:3], *row[4:]]


def _arms(study: str) -> dict[str, ArmResult]:
    found = json.loads((ROOT / "docs" / "evidence" / f"{study}.json").read_text("utf-8"))
    return {arm.name: arm for arm in analyze.results_of(found)[0].arms}


def _shown(text: str, arm: ArmResult) -> str:
    """In bold what is shown after the correction."""
    return f"**{text}**" if arm.paired.corrected_p <= 0.05 else text


CONTROLS = {  # each column of README's table: the study, its digits, and the names of its arms
    "controls-ptb-tuned": (3, ("gain-1e-1", "degree1-1e-1", "gfsa-1e-1", "degree2-1e-1")),
    "controls-char": (2, ("gain-1e-2", "degree1-1e-2", "gfsa-3e-2", "degree2-1e-2")),
    "depth4": (4, ("gain-1e-2", "degree1-1e-2", "gfsa-1e-1", "degree2-3e-2", "none-2260")),
}
FILTERS = ("a gain a head", "degree 1", "GFSA, K = 3", "degree 2", "plain attention, 2,260")


CELLS = [  # plain attention in one column
    (begins, 2 + column, study, places, name)
    for column, (study, (places, names)) in enumerate(CONTROLS.items())
    for begins, name in zip(FILTERS, names, strict=False)
]
CELLS.append(("a learned sink", 2, "scalars-ptb", 3, "sink-1e-2"))


@pytest.mark.parametrize(("begins", "column", "study", "places", "name"), CELLS)
def test_the_table_of_controls_says_what_the_studies_found(
    begins: str, column: int, study: str, places: int, name: str
) -> None:
    arm = _arms(study)[name]
    mean, interval = _shown(f"{arm.paired.mean:+.{places}f}", arm), arm.paired.interval
    assert _row(README, begins)[column] == f"{mean} ({interval.as_text(places)})"


FIELD = {
    "GFSA": "gfsa",
    "Twicing": "twicing",
    "NeuTRENO": "neutreno",
    "XSA": "xsa",
    "FeatScale": "featscale",
    "value residual": "value_residual",
    "ContraNorm": "contranorm",
    "AttnScale": "attnscale",
    "p-LaT": "plat",
    "A - I": "laplacian",
}


@pytest.mark.parametrize(
    ("begins", "study"), [("All on Penn Treebank", "field-ptb"), ("The same on cha", "field-char")]
)
def test_the_table_of_the_field_says_what_the_studies_found(begins: str, study: str) -> None:
    text, arms = TEXTS["choosing.md"], _arms(study)
    assert _row(text, "study | GFSA")[1:] == list(FIELD)
    assert set(arms) == {"none", *FIELD.values()}
    for name, cell in zip(FIELD.values(), _row(text, begins)[1:], strict=True):
        change = 100 * arms[name].paired.mean / arms["none"].mean
        assert cell == _shown(f"{change:+.2f}", arms[name])


def _measured(name: str) -> dict:
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}-cpu.json").read_text("utf-8"))


FORMS = ("gfsa", "laplacian", "plat")


def test_the_table_of_attention_says_what_was_measured() -> None:
    for length, timed in _measured("attention")["lengths"].items():
        _, plain, *others = _row(TEXTS["measurements.md"], f"{length} |")
        seconds, memory = (timed["plain"][key] for key in ("seconds", "peak_bytes"))
        shown_time = f"{seconds:.1f} s" if seconds >= 1 else f"{1e3 * seconds:.1f} ms"
        assert plain == f"{shown_time}, {memory / 2**20:.0f} MB"
        for form, cell in zip((*FORMS, "published gfsa", "published plat"), others, strict=True):
            if form not in timed:
                assert cell == "not run"
                continue
            ratio, memory = timed[form]["ratio"], timed[form]["peak_bytes"] / 2**20
            assert cell == f"{ratio:.2f}, {memory:.0f} MB"


@pytest.mark.parametrize(
    ("begins", "name", "case", "digits"),
    [
        ("GPT-2 small, 1 x 1024, no attention dropout", "step-gpt2", "gpt2", 1),
        ("GPT-2 small, 1 x 1024, dropout 0.1", "step-gpt2-dropout", "gpt2-dropout", 1),
        ("BERT-base, 8 x 128, dropout 0.1", "step-bert-dropout", "bert-dropout", 1),
        ("BERT-base, 8 x 128 tokens", "inference", "bert", 2),
        ("GPT-2 small, 1 x 1024 tokens, a prefill", "inference", "gpt2-prefill", 2),
        ("ViT-base", "inference", "vit", 2),
        ("GPT-2 small, a token after 128", "decode", "128", 2),
        ("GPT-2 small, a token after 768", "decode", "768", 2),
    ],
)
def test_the_tables_of_speed_say_what_was_measured(
    begins: str, name: str, case: str, digits: int
) -> None:
    timed = _measured(name)["contexts" if name == "decode" else "cases"][case]
    _, plain, *others = _row(TEXTS["speed.md"], begins)
    assert plain == f"{timed['plain']['seconds']:.{digits}f} s"
    expected = [f"{timed[form]['ratio']:.2f}" if form in timed else "not run" for form in FORMS]
    assert others == expected


def test_the_table_of_estimates_follows_from_what_was_measured() -> None:
    for length, timed in _measured("attention")["lengths"].items():
        seconds, memory = (timed["plain"][key] for key in ("seconds", "peak_bytes"))
        expected = [
            f"{1e3 * seconds * (timed[form]['ratio'] - 1):+.1f} ms, "
            f"{(timed[form]['peak_bytes'] - memory) / 2**20:.0f} MB"
            for form in FORMS
        ]
        assert _row(TEXTS["speed.md"], f"{length} tokens |")[1:] == expected
        if int(length) in EXTRA:
            extra = (EXTRA[int(length)][form] for form in FORMS)
            assert [f"{time:+.1f} ms, {memory} MB" for time, memory in extra] == expected


def test_the_table_of_recipes_has_every_recipe() -> None:
    named = set()
    for row in re.findall(
        r"^\| (`[^|]*-[^|]*`) \| \w+\.py \|", TEXTS["published.md"], re.MULTILINE
    ):
        before, _, after = row.strip("`").partition("{")
        inside, _, after = after.partition("}")
        named |= {before + name + after for name in inside.split(",")}
    assert named == {path.stem for path in (ROOT / "finetune" / "recipes").glob("*.yaml")}
