"""A secret that another library hides, as an argument: told by its method, so that no library is imported."""

from typing import Protocol


class SecretText(Protocol):
    """A `SecretStr` of pydantic, or another text that shows itself only when asked."""

    def get_secret_value(self) -> str:
        """Return the text."""
        ...
