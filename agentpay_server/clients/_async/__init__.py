"""The async client of the sandbox; the sync one is generated from it."""
