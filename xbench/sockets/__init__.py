"""Collectives of our own over TCP, for tensors of CPUs: a process group that torch's Gloo can be compared with.

`meeting` connects the ranks, `connection` is one of these connections, `collectives` are what travels over them, and
`group` is the process group that schedules and DistributedDataParallel see.
"""
