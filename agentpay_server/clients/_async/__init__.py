"""The async client of the sandbox. The sync one is generated from it."""
