"""CUDA kernels and their twins in torch: `pack` moves gradients into and out of buckets, `wait` mimics collectives.

The sources are in `cuda/`, one purpose per file; `build` compiles them on first use. Every kernel has a twin in torch
operations with the same results, for machines without nvcc and for the tests.
"""
