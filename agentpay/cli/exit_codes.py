"""What the exit codes of commands mean, so that a script can tell a refusal from an unknown outcome."""

from typing import Final

FAILED: Final = 1
USAGE: Final = 2
UNWRITTEN: Final = 3
"""The command did what it was asked to, but its result could not be written: look it up."""
PENDING_APPROVAL: Final = 4
REFUSED: Final = 5
"""The policy, a pause or the balance does not allow it. No money moved."""
OUTCOME_UNKNOWN: Final = 6
INTERRUPTED: Final = 130
