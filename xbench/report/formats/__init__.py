"""Formats of a report: each walks the view of a record."""
