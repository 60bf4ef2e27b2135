"""The version, and how to install the package: each in one place."""

__version__ = "0.2.0"  # pyproject.toml reads it from here


def how_to_install(extra: str = "") -> str:
    """The command, and where to run it; the package is on no package index.

    Args:
        extra: a group of packages in pyproject.toml.
    """
    what = f"'.[{extra}]'" if extra else "."
    return f"pip install -e {what} (in a copy of hf_graphattn's repository)"
