"""Measurements of one training step and the collectives that it needs.

`clock` marks points in a device's work. `layers` instruments a step, and `timeline` one with communication.
`collectives` times all-reduces on the real links. `summary`, which imports no torch, turns the raw times of all ranks
into the record's parts.
"""
