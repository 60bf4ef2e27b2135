"""Triton's interpreter in half its time.

For each launch of a kernel it replaces the functions of `triton.language` by its own, and then does
so again at each call inside the kernel, where they are replaced already. The second takes as long
as all the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock


@contextmanager
def replacing_once() -> Iterator[None]:
    """Replace the language for launches alone; under a Triton made otherwise, do nothing."""
    from triton import language
    from triton.runtime import interpreter

    if not hasattr(interpreter, "_LangPatchScope"):
        yield
        return

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self.rewrite()(*args, **kwargs)

    # Functions of the language see it as `language.core`, which no launch replaces.
    scope = interpreter._patch_lang(language.standard.sum.fn)
    with mock.patch.object(interpreter.InterpretedFunction, "__call__", call):
        yield
    scope.restore()
