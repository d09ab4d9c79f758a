"""The base class of requests, which refuse unknown fields (interface R9)."""

from collections.abc import Mapping
from enum import Enum
from typing import Any, ClassVar, Final, Literal

from attrs import frozen

BODY_MAX_BYTES: Final = 64 * 1024
"""The largest request body, in bytes."""

MAX_NESTING: Final = 16
"""How deep arrays and objects of a request body may nest."""


@frozen
class Request:
    """Base class of request bodies and queries. The codec refuses unknown fields and lists every fault.

    A field whose default is None may be left out, but must not be `null`, unless its metadata is `NULLABLE`.
    """

    _example: ClassVar[Mapping[str, Any]] = {}
    """As in `Model`. Of the fields that are `UNSET` by default, the example has only these."""


NULLABLE: Final = {"nullable": True}
"""Metadata of a field for which `null` means the same as leaving it out."""


class Unset(Enum):
    """The type of `UNSET`: a field that is left out, in contrast to one that is `null`."""

    UNSET = "unset"

    def __repr__(self) -> str:
        return "UNSET"

    def __bool__(self) -> bool:
        return False


UNSET: Final = Unset.UNSET
"""Leaves a field out of a request."""

UnsetType = Literal[Unset.UNSET]
