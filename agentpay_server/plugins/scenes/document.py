"""The file of a scene: what it may contain, and every fault of one that does not.

TOML, read without floats. It never contains a secret: keys and webhook secrets are created when the scene is
built.
"""

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, time
from decimal import Decimal
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import Annotated, Final, Self

import attrs
from attrs import field, frozen

from agentpay.contract.bounds import MAX_KEY_SECONDS
from agentpay.contract.codec import InvalidValueError, structure
from agentpay.contract.errors import FieldError
from agentpay.contract.fields import Category, JsonObject, Rule, text, whole_number
from agentpay.contract.identifiers import is_public_key
from agentpay.contract.policies import PolicyChange
from agentpay.contract.requests import MAX_NESTING, UNSET, Request, UnsetType
from agentpay.contract.usdc import UsdcNumber, to_decimal
from agentpay.contract.webhooks import EventName

_BUNDLED: Final = Path(__file__).parent / "bundled"
"""The scenes that come with the server: states that an agent must handle, and one for each event type."""

OUTSIDE: Final = "outside"
"""A payee whose name begins with this is a token account outside the service, created with the scene."""

INBOX: Final = "inbox"
"""The `url` of a webhook whose receiver is an inbox of the embedded server."""

_NAME: Final = r"[A-Za-z0-9_-]{1,64}"
_LOCAL: Final = ("name", "path", "protocols", "mode", "pay_to", "port")
MAX_BYTES: Final = 1_000_000
"""The largest file that is read."""
_MAX_ADVANCE: Final = 10 * 365 * 86_400
MAX_FAULTS: Final = 20
"""How many faults an error names at most."""

_MAX_PLACE: Final = 200
_MAX_MESSAGE: Final = 1000
_MAX_NAMES: Final = 20
_MAX_INTEGER: Final = 2**63
_PART: Final = r"""(?:(?<![\w-])[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*"""
_LONG_KEY: Final = re.compile(
    rf"(?:^|[\[{{,])[ \t]*{_PART}(?:\.[ \t]*{_PART}){{{MAX_NESTING}}}", re.MULTILINE
)


class SceneError(ValueError):
    """The scene cannot be read or built. The message names the file's line or key, and what is allowed.

    Attributes:
        faults: each fault with its place in the file, at most 20.
        is_partly_built: whether accounts of the scene exist.
    """

    def __init__(
        self, message: str, *, faults: Sequence[FieldError] = (), is_partly_built: bool = False
    ) -> None:
        super().__init__(message)
        self.faults: tuple[FieldError, ...] = tuple(faults) or (FieldError(field="", message=message),)
        self.is_partly_built = is_partly_built

    @classmethod
    def at(cls, *faults: FieldError) -> Self:
        """Return the error of faults with their places."""
        return cls("; ".join(f"{each.field} {each.message}" for each in faults), faults=faults)


def _parse_usdc(value: object) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, str | int | Decimal):
        raise ValueError('must be USDC, such as "12.5" or 12.5')
    try:
        return to_decimal(value)
    except ValueError as error:
        raise ValueError(f'must be USDC, such as "12.5": {error}') from None


Usdc = Annotated[Decimal, Rule(_parse_usdc)]
Name = Annotated[str, text(minimum=1, maximum=100, trim=True, control=False)]
Label = Annotated[str, text(minimum=1, maximum=128)]


class StepStatus(StrEnum):
    """The outcome of a transfer or session of the history."""

    SETTLED = "settled"
    REJECTED = "rejected"
    PENDING_APPROVAL = "pending_approval"
    OPEN = "open"


@frozen(kw_only=True)
class SceneKey(Request):
    """An agent key. The key itself is created with the scene."""

    name: Name | None = None
    expires_in: Annotated[int, whole_number(minimum=1, maximum=MAX_KEY_SECONDS)] | None = None
    max_total_usdc: Usdc | None = None


@frozen(kw_only=True)
class ScenePolicy(PolicyChange):
    """`allowed_counterparties` may name accounts of the scene, and payees outside the service."""

    allowed_counterparties: tuple[Label, ...] | None | UnsetType = UNSET


@frozen(kw_only=True)
class SceneAccount(Request):
    """`balance_usdc` is what the account holds after the history; `policy` is the policy in force then."""

    name: Name
    balance_usdc: Usdc = Decimal(0)
    metadata: JsonObject | None = None
    policy: ScenePolicy = field(factory=ScenePolicy)
    keys: tuple[SceneKey, ...] = ()


@frozen(kw_only=True)
class SceneWebhook(Request):
    """`accounts` are names of the scene; `fails` is how many first deliveries an `inbox` refuses."""

    url: Label
    events: tuple[EventName, ...]
    accounts: tuple[Label, ...] = ()
    low_balance_threshold_usdc: UsdcNumber | None = None
    fails: Annotated[int, whole_number(minimum=0, maximum=1000)] = 0


class SellerProtocol(StrEnum):
    """How a local seller is paid."""

    X402_V2 = "x402_v2"
    X402_V1 = "x402_v1"
    X402_UPTO = "x402_upto"
    MPP = "mpp"
    MPP_SESSION = "mpp_session"

    @property
    def modes(self) -> type[StrEnum]:
        """How the seller may behave."""
        # The package imports the embedded server, which imports this module.
        from agentpay_server.plugins.paywall.products import Mode, SessionMode, UptoMode  # noqa: PLC0415

        return {self.X402_UPTO: UptoMode, self.MPP_SESSION: SessionMode}.get(self, Mode)


@frozen(kw_only=True)
class SceneSeller(Request):
    """A pin of a seller at `origin`, or a local seller that asks for `price`, with the pin of its URL.

    A pin says what counts, whatever the challenges of the seller claim.
    """

    origin: Label | None = None
    name: Label | None = None
    price: Usdc | None = None
    path: Annotated[str, text(minimum=1, maximum=1000)] = "/"
    protocols: tuple[SellerProtocol, ...] = (SellerProtocol.X402_V2, SellerProtocol.MPP)
    mode: Label = "honest"
    pay_to: Label | None = None
    port: Annotated[int, whole_number(minimum=0, maximum=65535)] = 0
    category: Category | None = None
    recipients: tuple[Label, ...] | None = None
    max_amount: Usdc | None = None
    blocked: bool = False
    sponsor_fees: bool = False

    @property
    def has_pin(self) -> bool:
        """Whether it says more than that a local seller exists."""
        pinned = (self.origin, self.category, self.recipients, self.max_amount)
        return any(each is not None for each in pinned) or self.blocked or self.sponsor_fees


@frozen(kw_only=True)
class SceneStep(Request):
    """A transfer (`amount`), a session (`cap_usdc`), or time that passes (`advance_seconds`)."""

    from_: Label | None = None
    to: Label | None = None
    amount: Usdc | None = None
    cap_usdc: Usdc | None = None
    charged_usdc: Usdc | None = None
    memo: Annotated[str, text(maximum=200)] | None = None
    category: Category | None = None
    status: StepStatus = StepStatus.SETTLED
    advance_seconds: Annotated[int, whole_number(minimum=1, maximum=_MAX_ADVANCE)] | None = None

    @property
    def is_judged(self) -> bool:
        """Whether the policy must be in force when it happens."""
        return self.status in (StepStatus.REJECTED, StepStatus.PENDING_APPROVAL)


@frozen(kw_only=True)
class Scene(Request):
    """Accounts by their names in the file, and what belongs to them."""

    accounts: dict[str, SceneAccount]
    webhooks: tuple[SceneWebhook, ...] = ()
    sellers: tuple[SceneSeller, ...] = ()
    history: tuple[SceneStep, ...] = ()


_MODELS: Final[Mapping[str, type[Request]]] = {
    r"": Scene,
    r"accounts\.[^.]+": SceneAccount,
    r"accounts\.[^.]+\.policy": ScenePolicy,
    r"accounts\.[^.]+\.keys\[\d+\]": SceneKey,
    r"webhooks\[\d+\]": SceneWebhook,
    r"sellers\[\d+\]": SceneSeller,
    r"history\[\d+\]": SceneStep,
}


def read_scene(path: Path | str) -> Scene:
    """Read the file of a scene.

    Raises:
        SceneError: the file cannot be read, or is no scene; the message lists every fault.
    """
    try:
        content = Path(path).read_bytes()
        if len(content) > MAX_BYTES:
            raise SceneError(f"{path} has {len(content)} bytes; a scene has at most {MAX_BYTES}")
        return parse_scene(content.decode("utf-8"), name=str(path))
    except OSError as error:
        raise SceneError(f"cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise SceneError(f"{path} is not UTF-8 text") from None


def bundled_scene(name: str) -> Scene:
    """Return a bundled scene by the name of its file, such as `paused_account` or `transfer.settled`."""
    return read_scene(_BUNDLED / f"{name}.toml")


def parse_scene(content: str, *, name: str = "the scene") -> Scene:
    """Read the text of a scene; `name` is what errors call it.

    Raises:
        SceneError: as `read_scene`.
    """
    content = content.removeprefix("\ufeff")  # Some editors begin a file with it.
    try:
        document = _parsed(content)
    except ValueError as error:
        raise SceneError(f"{name} {error}", faults=[FieldError(field="", message=str(error))]) from None
    faults: Iterable[FieldError] = list(islice(_unfit_values(document), MAX_FAULTS))
    if not faults:
        try:
            scene = structure(document, Scene)
        except InvalidValueError as error:
            faults = (_fault(each.field, each.message, content) for each in error.faults)
        else:
            faults = [
                FieldError(field=key, message=message)
                for key, message in islice(_contradictions(scene), MAX_FAULTS)
            ]
            if not faults:
                return scene
    shown = [
        FieldError(field=each.field[:_MAX_PLACE], message=each.message[:_MAX_MESSAGE])
        for each in islice(faults, MAX_FAULTS)
    ]
    raise SceneError(f"{name}: " + "; ".join(f"{each.field} {each.message}" for each in shown), faults=shown)


def _parsed(content: str) -> dict[str, object]:
    """Return the document; a ValueError says what it is not."""
    # The parser takes quadratic time for a key of many parts, and recurses for each nested array.
    if _LONG_KEY.search(content):
        raise ValueError(f"has a key of more than {MAX_NESTING} parts")
    try:
        return tomllib.loads(content, parse_float=Decimal)
    except RecursionError:
        raise ValueError(f"nests deeper than {MAX_NESTING} levels") from None
    except ValueError as error:
        # Not only a TOMLDecodeError: Python reads no integer of thousands of digits.
        raise ValueError(f"is not TOML: {error}") from None


def _unfit_values(document: dict[str, object]) -> Iterator[FieldError]:
    """Yield each value that TOML has and JSON has not, and each one that nests too deep."""
    left: list[tuple[str, object, int]] = [("", document, 0)]
    while left:
        place, value, depth = left.pop()
        if isinstance(value, dict | list):
            if depth > MAX_NESTING:
                yield FieldError(field=place, message=f"nests deeper than {MAX_NESTING} levels")
                continue
            inner = (
                [(f"{place}.{key}".lstrip("."), each) for key, each in value.items()]
                if isinstance(value, dict)
                else [(f"{place}[{number}]", each) for number, each in enumerate(value)]
            )
            left += [(where, each, depth + 1) for where, each in reversed(inner)]
        elif isinstance(value, date | time):
            yield FieldError(field=place, message=f'is a time of TOML; allowed: a string, "{value}"')
        elif isinstance(value, Decimal) and not value.is_finite():
            yield FieldError(field=place, message="must be a finite number")
        elif isinstance(value, int) and not -_MAX_INTEGER <= value < _MAX_INTEGER:
            yield FieldError(field=place, message="must be an integer of at most 64 bits")


def _fault(key: str, message: str, content: str) -> FieldError:
    # The codec shows the key of a table in brackets, as if it were the place in a list.
    key = re.sub(r"\[([^\]\d][^\]]*)\]", r".\1", key)
    parent, _, leaf = key.rpartition(".")
    if message == "is not a known field":
        model = next((model for pattern, model in _MODELS.items() if re.fullmatch(pattern, parent)), Scene)
        allowed = ", ".join(each.name.removesuffix("_") for each in attrs.fields(model))
        message = f"is unknown; allowed: {allowed}"
    # A missing key has no line, but other tables may have a key of that name.
    lines = (
        []
        if message == "is required"
        else [
            number
            for number, line in enumerate(content.splitlines(), 1)
            if re.search(rf"(^|[\s{{,\[.]){re.escape(leaf)}\s*[=\]]", line)
        ]
    )
    return FieldError(field=key, message=f"(line {lines[0]}) {message}" if len(lines) == 1 else message)


def _allowed(names: Iterable[str]) -> str:
    shown = list(islice(names, _MAX_NAMES + 1))
    return f"allowed: {', '.join(shown[:_MAX_NAMES])}" + (", …" if len(shown) > _MAX_NAMES else "")


def _contradictions(scene: Scene) -> Iterator[tuple[str, str]]:
    known = _allowed(scene.accounts)
    for name in scene.accounts:
        if not re.fullmatch(_NAME, name) or name.startswith((OUTSIDE, "acct_")):
            yield f"accounts.{name}", f"needs a name of letters, digits, - and _, not {OUTSIDE}… or acct_…"
    for place, webhook in enumerate(scene.webhooks):
        for account in webhook.accounts:
            if account not in scene.accounts:
                yield f"webhooks[{place}].accounts", f"names no account of the scene: {account!r}; {known}"
        if not webhook.events:
            yield f"webhooks[{place}].events", "must not be empty"
        if webhook.url != INBOX and webhook.fails:
            yield f"webhooks[{place}].fails", f'is only for url = "{INBOX}"'
    yield from _faults_of_sellers(scene)
    for place, step in enumerate(scene.history):
        for key, message in _step_faults(step, scene):
            yield f"history[{place}]{key}", message


def _faults_of_sellers(scene: Scene) -> Iterator[tuple[str, str]]:
    names = [seller.name for seller in scene.sellers if seller.name]
    for place, seller in enumerate(scene.sellers):
        if seller.name and names.count(seller.name) > 1:
            yield f"sellers[{place}].name", f"{seller.name!r} is the name of another seller"
        for key, message in _seller_faults(seller, scene):
            yield f"sellers[{place}]{key}", message


def _seller_faults(seller: SceneSeller, scene: Scene) -> Iterator[tuple[str, str]]:
    if (seller.origin is None) == (seller.price is None):
        yield "", "needs either origin (a pin) or price (a local seller)"
        return
    if seller.price is None:
        given = [
            each.name
            for each in (attrs.fields_dict(SceneSeller)[key] for key in _LOCAL)
            if getattr(seller, each.name) != each.default
        ]
        yield from ((f".{key}", "is only for a local seller, which has a price") for key in given)
        return
    if seller.name is None or not re.fullmatch(_NAME, seller.name):
        yield ".name", "is required: letters, digits, - and _"
    if not seller.price:
        yield ".price", "must be at least 0.000001"
    if not seller.path.startswith("/"):
        yield ".path", f"must begin with a slash, not {seller.path!r}"
    if not seller.protocols:
        yield ".protocols", "must not be empty"
    for protocol in seller.protocols:
        modes = [str(mode) for mode in protocol.modes]
        if seller.mode not in modes:
            yield ".mode", f"of {protocol} must be one of {', '.join(modes)}"
    if seller.pay_to is None:
        return
    if SellerProtocol.MPP_SESSION in seller.protocols:
        yield ".pay_to", "is not for mpp_session: only the payee's key can settle a session"
    if seller.pay_to not in scene.accounts and not is_public_key(seller.pay_to):
        yield (
            ".pay_to",
            f"must name an account of the scene, or an address; {_allowed(scene.accounts)}",
        )


def _step_faults(step: SceneStep, scene: Scene) -> Iterator[tuple[str, str]]:
    kinds = [step.amount, step.cap_usdc, step.advance_seconds]
    if sum(kind is not None for kind in kinds) != 1:
        yield "", "needs one of amount (a transfer), cap_usdc (a session) and advance_seconds"
        return
    if step.advance_seconds is not None:
        return
    known = _allowed(scene.accounts)
    if step.from_ not in scene.accounts:
        yield ".from", f"must name an account of the scene, not {step.from_!r}; {known}"
    if step.to is None:
        yield ".to", f"is required: a name of the scene, {OUTSIDE}…, or an address; {known}"
    is_session = step.cap_usdc is not None
    statuses = ["open", "settled"] if is_session else ["settled", "rejected", "pending_approval"]
    if step.status not in statuses:
        yield ".status", f"must be one of {', '.join(statuses)}"
    if not is_session and step.charged_usdc is not None:
        yield ".charged_usdc", "is only for a session, which has a cap_usdc"
    if is_session and (step.charged_usdc or 0) > (step.cap_usdc or 0):
        yield ".charged_usdc", f"is {step.charged_usdc}; the cap is {step.cap_usdc}"
