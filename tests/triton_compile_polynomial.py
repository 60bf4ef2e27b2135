"""Compile the kernels of polynomials for a GPU that need not be there.

It prints of each kernel the bytes of shared memory, the registers of a thread, and the bytes of
registers that are spilled to memory. A call is made on the CPU, whose launches are compiled instead
of run. In a process of its own: the interpreter of the other tests replaces the compiler.

python tests/triton_compile_polynomial.py bfloat16 64 causal
python tests/triton_compile_polynomial.py float16 16 additive deterministic
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from typing import Any

import torch
import triton
from torch import Tensor
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from hf_graphattn.backends import AttentionInputs
from hf_graphattn.kernels.polynomial import triton_kernels
from hf_graphattn.kernels.polynomial.triton import triton as run

TARGET = GPUTarget("cuda", 90, 32)  # H100
TYPES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32", torch.uint8: "u8"}
NAMES = ("first_pass", "second_pass", "inner_backward", "keys_backward", "rows_backward")
LENGTH = 64


class Kernel:
    """A kernel whose launch is compiled instead, for strides and lengths divisible by 16."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel

    def __getitem__(self, grid: tuple[int, int]) -> Kernel:
        return self

    def __call__(self, *given: Any, num_warps: int, num_stages: int, **constants: Any) -> None:
        values, signature, attributes = iter(given), {}, {}
        for place, name in enumerate(self.kernel.arg_names):
            value = None if name in constants else next(values)
            kinds = {type(None): "constexpr", int: "i32", float: "fp32"}
            is_tensor = isinstance(value, Tensor)
            signature[name] = f"*{TYPES[value.dtype]}" if is_tensor else kinds[type(value)]
            if is_tensor or isinstance(value, int):
                attributes[(place,)] = [["tt.divisibility", 16]]
        source = ASTSource(
            fn=self.kernel, signature=signature, constexprs=constants, attrs=attributes
        )
        options = {"num_warps": num_warps, "num_stages": num_stages}
        code = triton.compile(source, target=TARGET, options=options)
        print(self.kernel.__name__, code.metadata.shared, *registers(code.asm["cubin"]), flush=True)


def registers(cubin: bytes) -> tuple[int, int]:
    """Registers a thread, and the bytes of its stack, which are those that were spilled."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", shown)
    assert found
    return int(found[1]), int(found[2])


def main() -> None:
    dtype, width, kind = getattr(torch, sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    states = [torch.empty(1, 1, LENGTH, width, dtype=dtype, requires_grad=True) for _ in range(3)]
    masks = {
        "boolean": torch.ones(LENGTH, LENGTH, dtype=torch.bool),
        "additive": torch.zeros(LENGTH, LENGTH, requires_grad=True),
    }
    inputs = AttentionInputs(*states[:2], masks.get(kind), kind == "causal", 1.0, 0.0)
    for name in NAMES:
        setattr(triton_kernels, name, Kernel(getattr(triton_kernels, name)))
    deterministic = "deterministic" in sys.argv
    run(inputs, states[2], [0.0, 1.0, 0.5], deterministic=deterministic).sum().backward()


if __name__ == "__main__":
    main()
