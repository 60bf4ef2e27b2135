"""What becomes of the fuzz's calls: the right result, or an error that says what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hf_graphattn as ga

REFUSED = object()


def outcome(call: Callable[[], Any], naming: object = "") -> Any:
    """What the call gives; `REFUSED` where it is refused with an error that says `naming`.

    Beside the library's error it may be that of the system: there is no such file, network, or
    package (PEFT's configs name some).
    """
    try:
        return call()
    except (ga.GraphAttentionError, OSError) as error:
        message = str(error)
    except ImportError as error:
        message = f"{naming}: {error}"
    assert str(naming) in message
    assert len(message) > 20
    return REFUSED
