"""Sessions: an escrow, charges against it, and one settlement."""
