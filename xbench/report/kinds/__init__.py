"""Views of records: one a kind."""
