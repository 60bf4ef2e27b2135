"""`python -m hf_graphattn.diagnose --model runs/a --model runs/b --text file`; see `--help`."""

import sys

from hf_graphattn.diagnostics import diagnose

if __name__ == "__main__":
    from hf_graphattn.diagnostics.command import main

    main()
else:
    # Importing a submodule sets its package's attribute of that name. The function takes the
    # module's place, so that `hf_graphattn.diagnose` stays the function.
    sys.modules[__name__] = diagnose  # type: ignore[assignment]
