"""Horovod, the rival and the carrier: building it, its launcher's environment, its collectives as a process group.

Horovod (Sergeev and Del Balso, arXiv 1802.05799) averages gradients in a thread of its own: hooks hand it tensors by
name, and every cycle (1 ms) the ranks tell each other which they have; those that all have are packed into one buffer
(128 MiB at most: tensor fusion) and travel together. Importing this package imports neither torch nor Horovod.
"""
