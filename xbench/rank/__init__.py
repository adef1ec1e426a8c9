"""Rank side: one process of one job, from its program to its journal."""
