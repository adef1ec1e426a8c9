"""Inventory of the machine: what works on it, and what is missing."""
