"""Measuring one training step and the collectives it needs.

`clock` marks points in a device's work, `layers` instruments a step, `timeline` one whose gradients travel,
`collectives` times all-reduces on the real links, and `summary`, which imports no torch, turns the raw times of all
ranks into the record's parts.
"""
