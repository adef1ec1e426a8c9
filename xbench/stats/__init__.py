"""Statistics of few, noisy, drifting measurements: pure functions, no torch, and no scipy until one needs it."""
