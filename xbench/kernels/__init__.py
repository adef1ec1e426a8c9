"""CUDA kernels and their twins in torch: `pack` moves gradients into and out of buckets, `wait` mimics collectives.

The sources are in `cuda/`, one purpose per file; `build` compiles them on first use, and `driver` launches them. Every
kernel has a twin in torch operations with the same results, for GPUs that cannot run them and for the tests.
"""
