"""Drawings that several kinds of records share."""
