"""Running ranks: the parent side (`run`, `launch`, `assemble`) and the rank side (`worker`, `measure`, `parity`)."""
