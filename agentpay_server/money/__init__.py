"""The money core."""
