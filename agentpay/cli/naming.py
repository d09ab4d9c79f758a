"""Names in place of identifiers, and completing them: of accounts, of keys, and of webhooks by URL.

Unknown and ambiguous names raise `CommandRefusedError`.
"""

import contextlib
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, islice
from typing import Any, Final, NamedTuple

import click
from click.shell_completion import CompletionItem

from agentpay import AgentPay, errors
from agentpay.cli.connection import address_of, client_of
from agentpay.cli.options import KEY_VARIABLE, URL_VARIABLE, Named, as_typed, is_identifier
from agentpay.cli.output import CommandRefusedError, Output
from agentpay.contract.identifiers import ACCOUNT, KEY, TRANSFER, WEBHOOK, is_public_key

_SHOWN_MAX: Final = 5
_PAGE: Final = 100
_ACCOUNT_ID: Final = re.compile(rf"\b{ACCOUNT}[0-9a-z]{{26}}\b", re.ASCII)


class _Kind(NamedTuple):
    """A kind of thing that people name.

    Attributes:
        prefix: that of its identifiers.
        words: returns the identifier of an item, then its names.
        items: reads the items; of many, only the ones with a name.
        what: stands before the name in a message.
        command: lists the items.
    """

    prefix: str
    words: Callable[[Any], Sequence[str | None]]
    items: Callable[[AgentPay, str], Any]
    what: str = ""
    command: str = ""


# Not the accounts of the contract, whose balances are live: they cannot be read while the chain is away.
_ACCOUNT: Final = _Kind(
    ACCOUNT,
    lambda each: (each.account_id, each.name, each.handle),
    lambda server, name: server.console.list_details(name=name, limit=_PAGE),
    "account named",
    "accounts list",
)
_KINDS: Final[Mapping[str, _Kind]] = {
    **dict.fromkeys(("account", "own account", "payee"), _ACCOUNT),
    "agent key": _Kind(
        KEY,
        lambda each: (each.key_id, each.name),
        lambda server, name: server.agent_keys.list(name=name or None, limit=_PAGE),
        "agent key named",
        "keys list",
    ),
    "operator key": _Kind(
        KEY,
        lambda each: (each.key_id, each.name),
        lambda server, _: server.operator_keys.list(limit=_PAGE),
        "operator key named",
        "operator-keys list",
    ),
    "key": _Kind(
        KEY,
        lambda each: (each.key_id, each.name),
        lambda server, name: chain(
            server.operator_keys.list(limit=_PAGE),
            server.agent_keys.list(name=name or None, include_revoked=True, limit=_PAGE),
        ),
        "key named",
        "keys list --revoked",
    ),
    "webhook": _Kind(
        WEBHOOK,
        lambda each: (each.webhook_id, each.url),
        lambda server, _: server.webhooks.list(limit=_PAGE),
        "webhook with URL",
        "webhooks list",
    ),
    "waiting transfer": _Kind(
        TRANSFER, lambda each: (each.transfer_id,), lambda server, _: server.approvals.list(limit=_PAGE)
    ),
}
"""By the names of `Named` types."""


def identified(server: AgentPay, output: Output, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the command's options, with identifiers where it takes names."""
    values = dict(given)
    for param in click.get_current_context().command.params:
        if isinstance(param.type, Named):
            kind, named = param.type.name, values[str(param.name)]
            if isinstance(named, tuple):
                values[str(param.name)] = tuple(_find(server, output, each, kind) for each in named)
            elif named is not None:
                values[str(param.name)] = _find(server, output, named, kind)
            elif kind == "own account":
                values[str(param.name)] = _own_account(server, output, str(param.name))
    return values


def find_account(server: AgentPay, output: Output, given: str) -> str:
    """Return the account with this identifier, name or handle. Agent keys cannot look up names."""
    return _find(server, output, given, "account")


def _own_account(server: AgentPay, output: Output, parameter: str) -> str:
    account_id = server.whoami().account_id
    if account_id is None:
        message = f"an operator key has many accounts: pass {as_typed(parameter)}."
        raise CommandRefusedError(message, output, error="no_account")
    return account_id


def _find(server: AgentPay, output: Output, given: str, name: str) -> str:
    kind = _KINDS[name]
    if is_identifier(given, kind.prefix) or (name == "payee" and is_public_key(given)):
        return given
    try:
        with output.progress(f"Looking up {given}"):
            words = [kind.words(each) for each in kind.items(server, given)]
    except errors.PermissionDeniedError:
        if kind is not _ACCOUNT:
            raise
        raise CommandRefusedError(
            f"an agent key cannot look up the account named {given!r}. Use an operator key, or pass the "
            "account_id to a command that takes an agent key.",
            output,
            error="forbidden",
        ) from None
    found = [str(identifier) for identifier, *names in words if given in names]
    if len(found) == 1:
        return found[0]
    what = f"{kind.what} {given!r}"
    if not found:
        raise CommandRefusedError(
            f"there is no {what}. List them with agentpay {kind.command}.", output, error="not_found"
        )
    shown = ", ".join(found[:_SHOWN_MAX]) + (", …" if len(found) > _SHOWN_MAX else "")
    raise CommandRefusedError(
        f"{len(found)} matches for {what}: {shown}. Pass an identifier.", output, error="ambiguous"
    )


def completed(context: click.Context, name: str, incomplete: str) -> list[CompletionItem]:
    """Complete names and identifiers of a kind, from the service that is set up if it responds."""
    kind, variables = _KINDS[name], {"url": URL_VARIABLE, "key": KEY_VARIABLE}
    # Completion has read the options only in part.
    given = {
        each: context.params.get(each) or os.environ.get(variable) for each, variable in variables.items()
    }
    try:
        address = address_of(**given, profile=context.params.get("profile"))
        with client_of(address) as server:
            found = (
                _accounts_like(server, incomplete)
                if kind is _ACCOUNT
                else islice(kind.items(server, ""), _PAGE)
            )
            words = dict.fromkeys(word for each in found for word in kind.words(each))
    except (click.ClickException, errors.AgentPayError, ValueError):
        return []
    return [
        CompletionItem(word) for word in words if word and word.startswith(incomplete) and word.isprintable()
    ]


def _accounts_like(server: AgentPay, incomplete: str) -> Iterable[Any]:
    newest = server.console.list_details(limit=_PAGE)
    if not newest.has_more or not incomplete.strip():
        return newest.data
    return (*newest.data, *server.console.search(incomplete[:_PAGE], limit=20).accounts)


class AccountNames:
    """The names of accounts, for lists and questions; identifiers where names are not known."""

    def __init__(self, server: AgentPay) -> None:
        self._server = server
        self._known: dict[str, str] = {}

    def __call__(self, texts: Sequence[str], *, in_full: bool = False) -> list[str]:
        """Return texts with the unique names of accounts in place of their identifiers, or before them."""
        asked = dict.fromkeys(each for text in texts for each in _ACCOUNT_ID.findall(text))
        new = [each for each in asked if each not in self._known]
        self._known |= dict(zip(new, new, strict=True))
        # An agent key reads its own account only.
        with contextlib.suppress(errors.PermissionDeniedError):
            for start in range(0, len(new), _PAGE):
                found = self._server.console.list_details(ids=new[start : start + _PAGE], limit=_PAGE)
                self._known |= {each.account_id: each.name for each in found}
        times = Counter(self._known.values())
        unique = {each: name for each, name in self._known.items() if times[name] == 1}
        if in_full:
            unique = {each: f"{name} ({each})" for each, name in self._known.items() if name != each}
        return [_ACCOUNT_ID.sub(lambda found: unique.get(found[0], found[0]), text) for text in texts]
