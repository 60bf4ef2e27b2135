"""Kernels of the variants that fused attention cannot compute. Plain torch in, plain torch out."""
