"""The step of a release that comes after this one, as far as simulations go."""
