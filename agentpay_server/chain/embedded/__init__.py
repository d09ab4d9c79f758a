"""The chain within the process."""
