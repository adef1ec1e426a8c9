"""Our CUDA kernels and their twins: `pack` moves gradients into and out of buckets, `wait` stands in for a collective.

The sources are in `cuda/`, one purpose a file; `build` compiles them on first use. Every kernel has a twin in torch
operations with the same results, for machines without nvcc and for the tests.
"""
