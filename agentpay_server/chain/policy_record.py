"""The on-chain policy record: its content, its size, and how to parse it (interface PO12).

The record is the metadata extension of a Token-2022 mint that never mints. `transactions.py` writes it.
"""

import struct
from typing import Final

from attrs import frozen

RECORD_SYMBOL: Final = "POLICY"
VERSION_FIELD: Final = "policy_version"
SHA256_FIELD: Final = "policy_sha256"
POLICY_FIELD: Final = "policy"

MAX_POLICY_CHARACTERS: Final = 700
"""Of a longer policy, only the digest is recorded."""

RECORD_MINT_BYTES: Final = 234
"""A mint (82 bytes, padded to 165), its account type (1) and its metadata pointer (4 + 64)."""

_EXTENSIONS_OFFSET: Final = 166
_HEADER: Final = struct.Struct("<HH")
_LENGTH: Final = struct.Struct("<I")
_METADATA_EXTENSION: Final = 19
_KEYS_BYTES: Final = 64  # The update authority and the mint.


@frozen(kw_only=True)
class PolicyRecord:
    """The content of an account's policy record.

    `policy_sha256` is the hex digest of the policy as RFC 8785 JSON; `policy` is that JSON, None if it is not
    on chain.
    """

    account_id: str
    policy_version: int
    policy_sha256: str
    policy: str | None

    @property
    def publishable_policy(self) -> str | None:
        """The policy, unless it is longer than `MAX_POLICY_CHARACTERS`."""
        if self.policy is None or len(self.policy) > MAX_POLICY_CHARACTERS:
            return None
        return self.policy

    @property
    def size(self) -> int:
        """The maximum size of the account's data in bytes; an unpublishable policy does not count."""
        texts = [self.account_id, RECORD_SYMBOL, ""]
        texts += [VERSION_FIELD, str(self.policy_version), SHA256_FIELD, self.policy_sha256]
        if self.publishable_policy is not None:
            texts += [POLICY_FIELD, self.publishable_policy]
        strings = sum(_LENGTH.size + len(text.encode()) for text in texts)
        return RECORD_MINT_BYTES + _HEADER.size + _KEYS_BYTES + _LENGTH.size + strings


def read_policy_record(data: bytes) -> PolicyRecord:
    """Parse the data of a record account.

    Raises:
        ValueError: `data` is not a complete policy record.
    """
    try:
        name, fields = _read_metadata(_metadata_extension(data))
        return PolicyRecord(
            account_id=name,
            policy_version=int(fields[VERSION_FIELD]),
            policy_sha256=fields[SHA256_FIELD],
            policy=fields.get(POLICY_FIELD),
        )
    except struct.error as error:
        raise ValueError("the account's data ends in the middle of a policy record") from error
    except KeyError as error:
        raise ValueError(f"the policy record has no field {error}") from error


def _metadata_extension(data: bytes) -> bytes:
    offset = _EXTENSIONS_OFFSET
    while offset < len(data):
        kind, length = _HEADER.unpack_from(data, offset)
        offset += _HEADER.size
        if kind == _METADATA_EXTENSION:
            return data[offset : offset + length]
        offset += length
    raise ValueError("the account holds no metadata, hence no policy record")


def _read_metadata(data: bytes) -> tuple[str, dict[str, str]]:
    offset = _KEYS_BYTES

    def text() -> str:
        nonlocal offset
        (length,) = _LENGTH.unpack_from(data, offset)
        start = offset + _LENGTH.size
        offset = start + length
        if offset > len(data):
            raise ValueError("a string of the policy record is longer than the record")
        return data[start:offset].decode()

    name, _symbol, _uri = text(), text(), text()
    (count,) = _LENGTH.unpack_from(data, offset)
    offset += _LENGTH.size
    fields: dict[str, str] = {}
    for _ in range(count):
        key = text()
        fields[key] = text()
    return name, fields
