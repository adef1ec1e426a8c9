"""Horovod as a baseline and as a transport: its build, its launcher's environment, its collectives as a process group.

Horovod (Sergeev and Del Balso, arXiv 1802.05799) averages gradients in its own thread. Hooks submit tensors by name.
Every cycle (1 ms) the ranks announce which they have; those that all ranks have are packed into one buffer (128 MiB at
most: tensor fusion) and sent together. Importing this package imports neither torch nor Horovod.
"""
