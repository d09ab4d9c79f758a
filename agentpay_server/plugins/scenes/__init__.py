"""Scenes: the state of a server in one readable file, built by real operations; and ready ones."""
