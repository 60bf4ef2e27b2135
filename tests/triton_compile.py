"""Compile p-LaT's kernels for a GPU that need not be there.

It prints the bytes of shared memory, registers a thread, and bytes of registers spilled to memory,
with the default blocks or with others. In a process of its own: the interpreter of the other tests
replaces the compiler.

python tests/triton_compile.py bf16 64 boolean
python tests/triton_compile.py bf16 64 none --block 64 64 8 2 --dropout
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
from typing import Any

import torch
import triton
from triton import knobs
from triton import language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from hf_graphattn.kernels.plat import triton_kernels as kernels
from hf_graphattn.kernels.plat.triton import default_blocks
from hf_graphattn.kernels.triton_call import Block

TARGET = GPUTarget("cuda", 90, 32)  # H100
STATES = {"Q", "K", "V", "X", "GRAD", "OUT", "LOST", "DQ", "DX", "DK", "DV"}
FLOATS = {"P", "TOP", "NORM", "DELTA", "DP", "DMASK"}
NUMBERS = {"scaling", "eps", "dropout"}
MASKS = {"none": "*fp32", "boolean": "*u8", "additive": "*fp32"}


DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
KERNELS = ("rows_forward", "rows_backward", "columns_backward")


def settings(name: str, given: argparse.Namespace, block: Block) -> dict[str, Any]:
    """What `triton._Call` passes to the kernel as constants."""
    axes = ("ROW_BLOCK", "KEY_BLOCK") if name != "columns_backward" else ("KEY_BLOCK", "ROW_BLOCK")
    dtype, half = given.dtype, given.dtype != "fp32"
    return dict(zip(axes, block[:2], strict=True)) | {
        "GROUP": 1,
        "WIDTH": given.width,
        "COLUMNS": max(16, 1 << (given.width - 1).bit_length()),
        "CAUSAL": given.mask == "none",
        "MASK": given.mask,
        "DROPOUT": given.dropout,
        "CENTRED": not half,
        "FAST": half,
        "PRECISION": "ieee",
        "WIDE": tl.bfloat16 if dtype == "bf16" else tl.float32,
        "WIDE_PRECISION": "tf32" if half else "ieee",
        "MASK_GRADIENT": given.mask == "additive",
        "m_y": 1,
    }


def compiled(name: str, given: argparse.Namespace, block: Block) -> Any:
    """One kernel's machine code, for aligned pointers, and strides and lengths divisible by 16."""
    kernel, constants = getattr(kernels, name), settings(name, given, block)

    def kind(name: str) -> str:
        if name in constants:
            return "constexpr"
        if name in STATES or name == "CENTRE":
            return "*fp32" if name == "CENTRE" and given.dtype == "fp32" else f"*{given.dtype}"
        if name in FLOATS:
            return "*fp32"
        named = {"MASK_AT": MASKS[given.mask], "SEED": "*i64"}
        return named.get(name, "fp32" if name in NUMBERS else "i32")

    signature = {name: kind(name) for name in kernel.arg_names}
    divisible = [
        i for i, kind in enumerate(signature.values()) if kind.startswith("*") or kind == "i32"
    ]
    source = ASTSource(
        fn=kernel,
        signature=signature,
        constexprs={name: constants[name] for name in kernel.arg_names if name in constants},
        attrs={(i,): [["tt.divisibility", 16]] for i in divisible},
    )
    options = {"num_warps": block.warps, "num_stages": block.stages}
    return triton.compile(source, target=TARGET, options=options)


def registers(cubin: bytes) -> tuple[int, int]:
    """Registers a thread, and the bytes of a thread's stack, which are those that were spilled."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", shown)
    assert found
    return int(found[1]), int(found[2])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dtype", choices=DTYPES)
    parser.add_argument("width", type=int)
    parser.add_argument("mask", choices=MASKS)
    parser.add_argument("--block", type=int, nargs="+", help="Made, swept, warps, stages.")
    parser.add_argument("--dropout", action="store_true")
    given = parser.parse_args()
    forward, backward = default_blocks(DTYPES[given.dtype], given.width)
    for name in KERNELS:
        block = forward if name == "rows_forward" else backward
        code = compiled(name, given, Block(*given.block) if given.block else block)
        print(name, code.metadata.shared, *registers(code.asm["cubin"]), flush=True)


if __name__ == "__main__":
    main()
