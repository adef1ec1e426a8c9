"""Flows of whole runs: prepare, launch, collect, and build the record."""
