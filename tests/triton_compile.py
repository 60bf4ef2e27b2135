"""Compile p-LaT's kernels for a GPU that need not be there, and print their shared memory.

In a process of its own: the interpreter of the other tests replaces the compiler.

python tests/triton_compile.py bf16 64 64 64 boolean
"""

from __future__ import annotations

import sys
from typing import Any

import triton
from triton import language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from hf_graphattn.kernels.plat import triton_kernels as kernels

TARGET = GPUTarget("cuda", 80, 32)  # A100
STATES = {"Q", "K", "V", "X", "GRAD", "OUT", "DQ", "DX", "DK", "DV"}
FLOATS = {"P", "TOP", "NORM", "DELTA", "DP", "DMASK"}
NUMBERS = {"scaling", "eps", "dropout"}
MASKS = {"none": "*fp32", "boolean": "*u8", "additive": "*fp32"}


def settings(dtype: str, width: int, rows: int, keys: int, mask: str) -> dict[str, Any]:
    """What `triton._Call` passes as constants, all features on."""
    return {
        "GROUP": 1,
        "WIDTH": width,
        "COLUMNS": max(16, 1 << (width - 1).bit_length()),
        "ROW_BLOCK": rows,
        "KEY_BLOCK": keys,
        "CAUSAL": mask == "none",
        "MASK": mask,
        "DROPOUT": True,
        "CENTRED": dtype == "fp32",
        "PRECISION": "ieee",
        "WIDE": tl.bfloat16 if dtype == "bf16" else tl.float32,
        "WIDE_PRECISION": "ieee" if dtype == "fp32" else "tf32",
        "MASK_GRADIENT": mask == "additive",
    }


def compiled(kernel: Any, dtype: str, mask: str, constants: dict[str, Any]) -> Any:
    """One kernel's machine code."""

    def kind(name: str) -> str:
        if name in constants:
            return "constexpr"
        if name in STATES or name == "CENTRE":
            return "*fp32" if name == "CENTRE" and dtype == "fp32" else f"*{dtype}"
        if name in FLOATS:
            return "*fp32"
        named = {"MASK_AT": MASKS[mask], "SEED": "*i64"}
        return named.get(name, "fp32" if name in NUMBERS else "i32")

    signature = {name: kind(name) for name in kernel.arg_names}
    known = {name: constants[name] for name in kernel.arg_names if name in constants}
    source = ASTSource(fn=kernel, signature=signature, constexprs=known)
    return triton.compile(source, target=TARGET, options={"num_warps": 4, "num_stages": 2})


def main() -> None:
    dtype, mask = sys.argv[1], sys.argv[5]
    width, rows, keys = (int(word) for word in sys.argv[2:5])
    constants = settings(dtype, width, rows, keys, mask)
    for name in ("rows_forward", "rows_backward", "columns_backward"):
        code = compiled(getattr(kernels, name), dtype, mask, constants)
        assert code.asm["cubin"]
        print(name, code.metadata.shared)


if __name__ == "__main__":
    main()
