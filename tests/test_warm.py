"""A warm Python is used as any other: what it is given, what it gives, how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import warm

pytestmark = pytest.mark.skipif(
    warm.python() == sys.executable, reason="this system's processes are not forked"
)
STARTS = {"torch": "torch", "transformers": "torch transformers"}
STARTS["finetune"] = f"{STARTS['transformers']} datasets"
LOADED = "import sys; print(*(name for name in sys.argv[1:] if name in sys.modules))"


def run(*words: object, start: str = "torch", **how: object) -> subprocess.CompletedProcess[str]:
    command = [warm.python(start), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, **how)  # type: ignore[call-overload]


def test_the_imports_are_done_and_ours_are_not_among_them() -> None:
    """Those that read the environment of huggingface_hub are so in each environment."""
    known = (*STARTS["finetune"].split(), "hf_graphattn", "finetune", "tasks")
    for start, loaded in STARTS.items():
        assert run("-c", LOADED, *known, start=start).stdout == f"{loaded}\n"
    code, other = "from huggingface_hub import constants as c; print(c.HF_HOME)", {"HF_HOME": "/e"}
    found = run("-c", f"{LOADED}; {code}", "datasets", start="finetune", env=os.environ | other)
    assert found.stdout == "datasets\n/e\n"


def test_a_program_is_given_what_it_would_be(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys\nassert __name__ == '__main__' and __file__ == sys.argv[0]\n"
        "print(sys.argv[1:], os.getcwd(), os.environ['OWN'], sys.path[:2], input(), sys.executable)"
    )
    how = {"cwd": tmp_path, "env": {"OWN": "1", "PYTHONPATH": "/own"}, "input": "read\n"}
    found = run(script, "a", "-u", **how)
    paths = [str(tmp_path), "/own"]
    expected = f"['a', '-u'] {tmp_path} 1 {paths} read {warm.python('torch')}\n"
    assert (found.stdout, found.stderr, found.returncode) == (expected, "", 0)
    module = run("-u", "-m", "script", "d", **how)
    assert module.stdout == expected.replace("['a', '-u']", "['d']")


@pytest.mark.parametrize(
    ("code", "said", "ended"),
    [
        ("raise SystemExit(3)", "", 3),
        ("1 / 0", "ZeroDivisionError", 1),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", "", -signal.SIGTERM),
    ],
)
def test_it_ends_as_the_program_does(code: str, said: str, ended: int) -> None:
    found = run("-c", code)
    assert (found.returncode, said in found.stderr) == (ended, True)


def test_whoever_kills_it_kills_the_program() -> None:
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    command = [warm.python("torch"), "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as started:
        program = int(started.stdout.readline())
        assert Path(f"/proc/{program}").exists()
        started.kill()
        assert started.stdout.read() == ""  # it has closed its output
    assert started.returncode == -signal.SIGKILL
