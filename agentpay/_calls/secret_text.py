"""A secret that another library hides, as an argument. Recognized by its method, without an import."""

from typing import Protocol


class SecretText(Protocol):
    """A `SecretStr` of pydantic, or another object that hides its text."""

    def get_secret_value(self) -> str: ...
