"""Due work, driven by the clock."""
