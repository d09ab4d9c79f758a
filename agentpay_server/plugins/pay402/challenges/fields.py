"""Reads fields that a stranger has written. A field of the wrong form makes what it is part of unreadable.

Lengths are checked before decoding. An error names the field and never repeats the value, which a stranger
wrote. `replace_member` replaces what is not parsed at all: extensions of x402 may be anything, such as
schemas that nest deeply, or numbers that no parser keeps exactly, and are repeated as the seller wrote them.
"""

import base64
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final, TypeVar

from solders.hash import Hash
from solders.pubkey import Pubkey
from solders.signature import Signature

from agentpay.contract import json_text
from agentpay.contract.json_text import InvalidJsonError
from agentpay_server.chain.instructions import TOKEN_PROGRAM, USDC_DECIMALS
from agentpay_server.plugins.pay402.challenges.terms import Offer, Skipped, UnreadableChallengeError

T = TypeVar("T")

MAX_ENCODED_CHARACTERS: Final = 32 * 1024
"""Maximum length of an encoded challenge in a header: its URL and its description may each fill 8 KiB."""

MAX_TEXT_CHARACTERS: Final = 8 * 1024
MAX_NESTING: Final = 64
"""How deep the JSON of sellers may nest: they describe the results of their APIs in it."""

MAX_MEMO_BYTES: Final = 566
"""The longest `externalId` of MPP."""

MAX_AMOUNT: Final = 2**64 - 1
"""The highest amount of any token, in its smallest unit."""

_AMOUNT: Final = re.compile(r"[0-9]{1,20}")
_BASE64: Final = re.compile(r"[A-Za-z0-9+/]*={0,2}")
_BASE64_URL: Final = re.compile(r"[A-Za-z0-9_-]*={0,2}")
_MARK: Final = re.compile(r'["{}\[\]]')
_REST_OF_STRING: Final = re.compile(r'(?:[^"\\]|\\.)*"', re.DOTALL)
_COLON: Final = re.compile(r"[ \t\n\r]*:[ \t\n\r]*")
_LITERAL: Final = re.compile(r"[^,}\]\s]*")


def json_object(body: bytes, name: str) -> dict[str, Any]:
    """Parse a body that must be a JSON object."""
    try:
        content = json_text.parse_request_json(body, max_nesting=MAX_NESTING)
    except InvalidJsonError as error:
        raise UnreadableChallengeError(f"{name} {error}") from None
    return exactly(content, dict, name)


def base64_object(text: str, name: str, *, is_url: bool = False) -> dict[str, Any]:
    """Decode a JSON object from base64, in the URL-safe or the standard alphabet."""
    return json_object(base64_bytes(text, name, is_url=is_url), name)


def base64_bytes(text: str, name: str, *, is_url: bool = False) -> bytes:
    """Decode base64, in the URL-safe or the standard alphabet, with or without padding."""
    if len(text) > MAX_ENCODED_CHARACTERS:
        raise UnreadableChallengeError(f"{name} is longer than {MAX_ENCODED_CHARACTERS} characters")
    alphabet = _BASE64_URL if is_url else _BASE64
    if alphabet.fullmatch(text) is None:
        raise UnreadableChallengeError(f"{name} is not base64")
    bare = text.rstrip("=").replace("-", "+").replace("_", "/")
    return _parsed(_base64, bare + "=" * (-len(bare) % 4), f"{name} is not base64")


def encoded(content: object) -> str:
    """Return JSON in base64."""
    return base64.b64encode(json_text.print_json(content)).decode("ascii")


def encoded_for_url(content: object) -> str:
    """Return canonical JSON in unpadded base64 for URLs."""
    canonical = json_text.print_canonical_json(content)
    return base64.urlsafe_b64encode(canonical).rstrip(b"=").decode("ascii")


def exactly(value: object, kind: type[T], name: str) -> T:
    """Return a value if it has exactly the given type: `True` is not an `int`."""
    if type(value) is not kind:
        raise UnreadableChallengeError(f"{name} must be {_NAMES.get(kind, kind.__name__)}")
    return value


def member(holder: Mapping[str, Any], key: str, kind: type[T]) -> T:
    """Return a required member."""
    if key not in holder:
        raise UnreadableChallengeError(f"{key} is missing")
    return exactly(holder[key], kind, key)


def optional(holder: Mapping[str, Any], key: str, kind: type[T]) -> T | None:
    """Return an optional member; None if it is missing or null."""
    return None if holder.get(key) is None else member(holder, key, kind)


def text(holder: Mapping[str, Any], key: str) -> str | None:
    """Return an optional text of bounded length; None if it is missing."""
    found = optional(holder, key, str)
    if found is None:
        return None
    if len(found) > MAX_TEXT_CHARACTERS:
        raise UnreadableChallengeError(f"{key} is longer than {MAX_TEXT_CHARACTERS} characters")
    if "\0" in found or not is_unicode(found):
        raise UnreadableChallengeError(f"{key} contains NUL or a lone surrogate")
    return found


def unicode_text(value: object, name: str) -> str:
    """Return a value if it is a text without lone surrogates."""
    found = exactly(value, str, name)
    if not is_unicode(found):
        raise UnreadableChallengeError(f"{name} contains a lone surrogate")
    return found


def memo(holder: Mapping[str, Any], key: str) -> str | None:
    """Return a memo; None if it is missing or empty."""
    found = text(holder, key)
    if found and len(found.encode("utf-8")) > MAX_MEMO_BYTES:
        raise UnreadableChallengeError(f"{key} is longer than {MAX_MEMO_BYTES} bytes")
    return found or None


def address(holder: Mapping[str, Any], key: str) -> str:
    """Return a Solana address."""
    # Normalized, so that equal addresses are equal texts.
    return str(_parsed(Pubkey.from_string, member(holder, key, str), f"{key} is not a Solana address"))


def token(holder: Mapping[str, Any], key: str) -> str:
    """Return the address of a mint, or the name that a seller has for its token."""
    found = unicode_text(member(holder, key, str), key)
    try:
        return str(Pubkey.from_string(found))
    except ValueError:
        if len(found) > MAX_TEXT_CHARACTERS:
            raise UnreadableChallengeError(f"{key} is longer than {MAX_TEXT_CHARACTERS} characters") from None
        return found


def amount(holder: Mapping[str, Any], key: str, *, least: int = 1) -> int:
    """Return an amount in the smallest units of any token, written as a text."""
    found = member(holder, key, str)
    if _AMOUNT.fullmatch(found) is None or not least <= int(found) <= MAX_AMOUNT:
        raise UnreadableChallengeError(
            f"{key} must be a whole number from {least} to {MAX_AMOUNT}, as a string"
        )
    return int(found)


def whole(holder: Mapping[str, Any], key: str, *, below: int = 2**64) -> int:
    """Return a whole number, or its decimal digits as text: JSON loses digits of large numbers."""
    found = holder.get(key)
    if isinstance(found, str) and _AMOUNT.fullmatch(found) is not None:
        found = int(found)
    if type(found) is not int or not 0 <= found < below:
        raise UnreadableChallengeError(f"{key} must be a whole number, as a string")
    return found


def transaction(holder: Mapping[str, Any], key: str) -> bytes:
    """Return the bytes of a transaction, written in padded base64."""
    return _parsed(_base64, member(holder, key, str), f"{key} is not base64")


def signature(holder: Mapping[str, Any], key: str) -> Signature:
    """Return a signature."""
    return _parsed(Signature.from_string, member(holder, key, str), f"{key} is not base58 of 64 bytes")


def blockhash(holder: Mapping[str, Any], key: str) -> str | None:
    """Return an optional blockhash; None if it is missing."""
    found = text(holder, key)
    return None if found is None else str(_parsed(Hash.from_string, found, f"{key} is not a blockhash"))


def slot(holder: Mapping[str, Any], key: str) -> int | None:
    """Return an optional slot, a number or a text; None if it is missing."""
    return None if holder.get(key) is None else whole(holder, key, below=2**63)


def token_fault(details: Mapping[str, Any]) -> str | None:
    """Return what decimals or a token program say that USDC does not have; None without a fault."""
    if optional(details, "decimals", int) not in (None, USDC_DECIMALS):
        return f"decimals must be {USDC_DECIMALS}, as for USDC"
    if text(details, "tokenProgram") not in (None, str(TOKEN_PROGRAM)):
        return "tokenProgram must be that of USDC"
    return None


def each_alone(challenges: Iterable[T], read: Callable[[T], Offer | Skipped]) -> Iterator[Offer | Skipped]:
    """Read challenges, or the offers in one, each alone: one that cannot be read spoils no other."""
    for each in challenges:
        try:
            found = read(each)
        except UnreadableChallengeError as error:
            found = Skipped(str(error), is_read=False)
        yield found


def _parsed(parse: Callable[[str], T], value: str, fault: str) -> T:
    try:
        return parse(value)
    except ValueError:
        raise UnreadableChallengeError(fault) from None


_base64: Final = partial(base64.b64decode, validate=True)


def is_unicode(value: str) -> bool:
    """Return whether a text has no lone surrogate, which JSON can express but no database can store."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


_NAMES: Final[dict[type, str]] = {
    str: "a string",
    int: "a whole number",
    bool: "true or false",
    dict: "a JSON object",
    list: "a list",
}


# --- What is repeated without being parsed


def replace_member(text: str, name: str, replacement: Callable[[str], str]) -> str:
    """Return the JSON text of an object in which the values of some of its members are replaced.

    The result is valid JSON only if the rest of the text is. Time is linear in the length of the text.

    Args:
        text: the text, which may be invalid.
        name: name of the members, which must be written without escapes.
        replacement: takes the text of a value, and returns its replacement.
    """
    key, pieces = json.dumps(name), []
    level, position, copied = 0, 0, 0
    while (mark := _MARK.search(text, position)) is not None:
        position = mark.end()
        if mark[0] != '"':
            level += 1 if mark[0] in "{[" else -1
            continue
        end = _REST_OF_STRING.match(text, position)
        if end is None:
            break
        position = end.end()
        colon = _COLON.match(text, position)
        if level == 1 and colon is not None and text[mark.start() : position] == key:
            position = _end_of_value(text, colon.end())
            pieces += [text[copied : colon.end()], replacement(text[colon.end() : position])]
            copied = position
    return "".join((*pieces, text[copied:]))


def _end_of_value(text: str, start: int) -> int:
    """Return where a value ends; the end of the text if it does not."""
    if text[start : start + 1] not in ("{", "[", '"'):
        literal = _LITERAL.match(text, start)
        return start if literal is None else literal.end()
    level, position = 0, start
    while (mark := _MARK.search(text, position)) is not None:
        position = mark.end()
        if mark[0] == '"':
            end = _REST_OF_STRING.match(text, position)
            if end is None:
                break
            position = end.end()
        else:
            level += 1 if mark[0] in "{[" else -1
        if level == 0:
            return position
    return len(text)
