"""Use cases: what an operation does, in units of work and chain calls."""
