"""Formats of a report. Each reads the view of a record."""
