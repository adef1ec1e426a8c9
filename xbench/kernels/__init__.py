"""The CUDA kernels that occupy a stream in place of a collective, and their twin in torch.

The source is `cuda/wait.cu`. `driver` compiles it on first use, and launches the kernels.
"""
