"""Pure rules: no I/O, no clock reads."""
