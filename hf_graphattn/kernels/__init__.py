"""Kernels of variants that fused attention cannot compute: a reference beside each."""
