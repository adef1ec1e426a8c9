"""The machine that ranks run on."""
