"""Kernels of variants that fused attention cannot compute: a reference (`naive`) beside each.

Axes: B sequences, H heads, N tokens (Nq queries, Nk keys), D channels of a head.
"""
