"""Settings of the machine that ranks run on."""
