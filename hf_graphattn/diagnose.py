"""`python -m hf_graphattn.diagnose --model runs/a --model runs/b --text file`; see `--help`."""

import sys

from hf_graphattn.diagnostics import diagnose

if __name__ == "__main__":
    from hf_graphattn.diagnostics.command import main

    main()
else:
    # Python binds an imported submodule to its package: `hf_graphattn.diagnose` stays the function.
    sys.modules[__name__] = diagnose  # type: ignore[assignment]
