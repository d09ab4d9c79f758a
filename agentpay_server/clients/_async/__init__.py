"""The async client of a whole server; the sync one is generated from it."""
