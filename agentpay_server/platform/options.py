"""Declares how a command takes a setting, in the metadata of the setting's field.

    idle_timeout_seconds: float = field(
        default=10.0,
        validator=Bounds(above=0),
        metadata=option("--idle-timeout", "How long a connection may stay open between two requests."),
    )

The rest follows from the field: the unit from the last word of its name, the type from its annotation, the
range from its `Bounds`, and the default. `cli/options.py` builds the options of commands from this, and
`scripts/options.py` the page of the documentation.
"""

from decimal import Decimal
from typing import Any, Final

from attrs import Attribute, frozen

_METADATA: Final = "agentpay_option"

Number = int | float | Decimal


@frozen(kw_only=True)
class Bounds:
    """Validates that a number is within bounds; `or_none` also allows None."""

    at_least: Number | None = None
    above: Number | None = None
    at_most: Number | None = None
    or_none: bool = False

    def __call__(self, _: object, attribute: "Attribute[Any]", value: Any) -> None:  # noqa: ANN401 - any number
        """Refuse other numbers, and NaN."""
        if value is None:
            if not self.or_none:
                raise TypeError(f"{attribute.name} must be a number, not None")
            return
        is_within = (
            (self.at_least is None or value >= self.at_least)
            and (self.above is None or value > self.above)
            and (self.at_most is None or value <= self.at_most)
        )
        if not is_within:
            raise ValueError(f"{attribute.name} must be {self}, not {value}")

    def __str__(self) -> str:
        """Say the bounds in words, such as `more than 0 and at most 10`."""
        named = {"at least": self.at_least, "more than": self.above, "at most": self.at_most}
        return " and ".join(f"{words} {bound}" for words, bound in named.items() if bound is not None)


@frozen(kw_only=True)
class Option:
    """An option of a command, and the environment variable with the same meaning.

    Attributes:
        name: such as `--idle-timeout`. `--no-…` sets a setting to False that is True by default.
        help: whole sentences.
        variable: the environment variable; None for none. That of a key file has the file's content.
        metavar: the placeholder of the value; None for the setting's unit.
        default: the default in words, if the value of the setting does not say it.
        is_secret: the help recommends the variable, because command lines are visible.
    """

    name: str
    help: str
    variable: str | None = None
    metavar: str | None = None
    default: str | None = None
    is_secret: bool = False


def option(
    name: str,
    text: str,
    *,
    variable: str | None = None,
    metavar: str | None = None,
    default: str | None = None,
    is_secret: bool = False,
) -> dict[str, Option]:
    """Return the metadata of a setting that commands take; `text` is the help."""
    declared = Option(
        name=name, help=text, variable=variable, metavar=metavar, default=default, is_secret=is_secret
    )
    return {_METADATA: declared}


def option_of(setting: "Attribute[Any]") -> Option | None:
    """Return how commands take a setting; None if they do not."""
    declared: Option | None = setting.metadata.get(_METADATA)
    return declared
