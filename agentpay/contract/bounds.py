"""Bounds that the command line shows in its help, apart from the models so that help loads no model."""

from typing import Final

MAX_KEY_SECONDS: Final = 365 * 86_400
"""The longest `expires_in` of an agent key."""

DEFAULT_OVERLAP_SECONDS: Final = 24 * 3600
MAX_OVERLAP_SECONDS: Final = 30 * 24 * 3600
"""How long two secrets of a webhook may both sign."""
