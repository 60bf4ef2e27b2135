"""Compile the Triton kernels for a GPU that need not be there.

It prints of each kernel the bytes of shared memory, the registers of a thread, and the bytes of a
thread's registers that are spilled to memory, with the default blocks. A call is
made on the CPU, whose launches are compiled instead of run. In a process of its own: the
interpreter of the other tests replaces the compiler.

python tests/triton_compile.py bfloat16 64 boolean
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
from typing import Any

import torch
import triton
from torch import Tensor
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from hf_graphattn.backends import AttentionInputs
from hf_graphattn.kernels import plat, plat_triton, plat_triton_kernels

TARGET = GPUTarget("cuda", 90, 32)  # H100
TYPES = {
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.float32: "*fp32",
    torch.uint8: "*u8",
    torch.int64: "*i64",
    int: "i32",
    float: "fp32",
}
HEADS, LENGTH = 2, 64
MASKS = {
    "none": None,
    "causal": None,
    "boolean": torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool),
    "additive": torch.zeros(1, 1, LENGTH, LENGTH, requires_grad=True),
}


class Kernel:
    """A kernel whose launch is compiled instead, with what Triton makes of its arguments.

    A number that is 1 is compiled in, and one that 16 divides is known to be so.
    """

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel

    def __getitem__(self, grid: tuple[int, int]) -> Kernel:
        return self

    def __call__(self, *given: Any, num_warps: int, num_stages: int, **constants: Any) -> None:
        values = iter(given)
        constants |= {"FAST": given[0].dtype != torch.float32}  # as on CUDA
        signature, divisible = {}, {}
        for place, name in enumerate(self.kernel.arg_names):
            value = None if name in constants else next(values)
            if value is None or (type(value) is int and value == 1):
                constants.setdefault(name, value)
                signature[name] = "constexpr"
                continue
            signature[name] = TYPES[value.dtype if isinstance(value, Tensor) else type(value)]
            if isinstance(value, Tensor) or (type(value) is int and value % 16 == 0):
                divisible[(place,)] = [["tt.divisibility", 16]]
        source = ASTSource(
            fn=self.kernel, signature=signature, constexprs=constants, attrs=divisible
        )
        options = {"num_warps": num_warps, "num_stages": num_stages}
        code = triton.compile(source, target=TARGET, options=options)
        print(self.kernel.__name__, code.metadata.shared, *registers(code.asm["cubin"]), flush=True)


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
    parser.add_argument("dtype", choices=("bfloat16", "float16", "float32"))
    parser.add_argument("width", type=int)
    parser.add_argument("mask", choices=MASKS)
    given = parser.parse_args()
    for name, kernel in vars(plat_triton_kernels).items():
        if isinstance(kernel, triton.JITFunction) and name.endswith(("forward", "backward")):
            setattr(plat_triton_kernels, name, Kernel(kernel))
    shape, dtype = (1, HEADS, LENGTH, given.width), getattr(torch, given.dtype)
    query, key, value = (torch.empty(shape, dtype=dtype, requires_grad=True) for _ in range(3))
    inputs = AttentionInputs(query, key, MASKS[given.mask], given.mask == "causal", 1.0, 0.0)
    p = torch.ones(HEADS, 1, 1, requires_grad=True)
    plat_triton.triton(inputs, plat.Values(value, value), p, 1e-3).sum().backward()


if __name__ == "__main__":
    main()
