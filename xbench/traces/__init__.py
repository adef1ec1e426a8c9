"""Profiles and link costs from files that people already have: profiler traces and nccl-tests output."""
