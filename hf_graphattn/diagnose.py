"""`python -m hf_graphattn.diagnose ...` is `graphattn diagnose ...`."""

import sys

if __name__ == "__main__":
    from .shell.main import main

    main(["diagnose", *sys.argv[1:]])
else:
    from .diagnostics import diagnose

    # Importing a submodule sets its package's attribute of that name. The function takes the
    # module's place, so that `hf_graphattn.diagnose` stays the function.
    sys.modules[__name__] = diagnose  # type: ignore[assignment]
