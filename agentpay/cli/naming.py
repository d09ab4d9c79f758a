"""Names in place of identifiers: accounts by name or handle, keys by name, webhooks by URL.

Unknown and ambiguous names raise `CommandRefusedError`.
"""

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import click

from agentpay import AgentPay, errors
from agentpay.cli.options import Named, is_identifier
from agentpay.cli.output import CommandRefusedError, Output
from agentpay.contract.identifiers import ACCOUNT, KEY, WEBHOOK, is_public_key

_SHOWN_MAX: Final = 5
_BATCH: Final = 100
"""How many accounts one request names."""
_ACCOUNT_ID: Final = re.compile(rf"\b{ACCOUNT}[0-9a-z]{{26}}\b", re.ASCII)


def identified(server: AgentPay, output: Output, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the command's options, with identifiers where it takes names."""
    values = dict(given)
    for param in click.get_current_context().command.params:
        if isinstance(param.type, Named):
            find, named = _FINDERS[param.type.name], values[str(param.name)]
            if isinstance(named, tuple):
                values[str(param.name)] = tuple(find(server, output, each) for each in named)
            elif named is not None:
                values[str(param.name)] = find(server, output, named)
            elif param.type.name == "own account":
                values[str(param.name)] = own_account(server, output)
    return values


def find_account(server: AgentPay, output: Output, given: str) -> str:
    """Return the account with this identifier, name or handle. Agent keys cannot look up names."""
    if is_identifier(given, ACCOUNT):
        return given
    try:
        with output.progress(f"Looking up {given}"):
            found = [each.account_id for each in server.console.list_details(name=given, limit=100)]
    except errors.PermissionDeniedError:
        raise CommandRefusedError(
            f"an agent key cannot look up the account named {given!r}: pass its account_id.",
            output,
            error="forbidden",
        ) from None
    return _only(found, f"account named {given!r}", "accounts list", output)


def own_account(server: AgentPay, output: Output) -> str:
    """Return the account of an agent key."""
    account_id = server.whoami().account_id
    if account_id is None:
        raise CommandRefusedError("an operator key has many accounts: name one.", output, error="no_account")
    return account_id


def _find_payee(server: AgentPay, output: Output, given: str) -> str:
    return given if is_public_key(given) else find_account(server, output, given)


def _find_key(server: AgentPay, output: Output, given: str) -> str:
    return _named(given, KEY, lambda: server.agent_keys.list(limit=100), "agent key", output)


def _find_operator_key(server: AgentPay, output: Output, given: str) -> str:
    return _named(given, KEY, lambda: server.operator_keys.list(limit=100), "operator key", output)


def _find_webhook(server: AgentPay, output: Output, given: str) -> str:
    if is_identifier(given, WEBHOOK):
        return given
    with output.progress(f"Looking up {given}"):
        webhooks = [each.webhook_id for each in server.webhooks.list(limit=100) if each.url == given]
    return _only(webhooks, f"webhook with URL {given!r}", "webhooks list", output)


_FINDERS: Final[Mapping[str, Callable[[AgentPay, Output, str], str]]] = {
    "account": find_account,
    "own account": find_account,
    "payee": _find_payee,
    "agent key": _find_key,
    "operator key": _find_operator_key,
    "webhook": _find_webhook,
}
"""For the name of each `Named` type, what finds the identifier."""


class AccountNames:
    """The names of accounts, for lists and questions; identifiers where names are not known."""

    def __init__(self, server: AgentPay) -> None:
        self._server = server
        self._known: dict[str, str] = {}

    def __call__(self, texts: Sequence[str]) -> list[str]:
        """Return texts with the unique names of accounts in place of their identifiers."""
        asked = dict.fromkeys(each for text in texts for each in _ACCOUNT_ID.findall(text))
        new = [each for each in asked if each not in self._known]
        self._known |= dict(zip(new, new, strict=True))
        # An agent key reads its own account only.
        with contextlib.suppress(errors.PermissionDeniedError):
            for start in range(0, len(new), _BATCH):
                # Not those of the contract: they cannot be read while the chain is away.
                found = self._server.console.list_details(ids=new[start : start + _BATCH], limit=_BATCH)
                self._known |= {each.account_id: each.name for each in found}
        times = Counter(self._known.values())
        unique = {each: name for each, name in self._known.items() if times[name] == 1}
        return [_ACCOUNT_ID.sub(lambda found: unique.get(found[0], found[0]), text) for text in texts]


def _named(given: str, prefix: str, items: Callable[[], Iterable[Any]], kind: str, output: Output) -> str:
    if is_identifier(given, prefix):
        return given
    with output.progress(f"Looking up {given}"):
        found = [each.key_id for each in items() if each.name == given]
    return _only(
        found, f"{kind} named {given!r}", f"{'keys' if kind == 'agent key' else 'operator-keys'} list", output
    )


def _only(found: list[str], what: str, command: str, output: Output) -> str:
    if len(found) == 1:
        return found[0]
    if not found:
        raise CommandRefusedError(
            f"there is no {what}. List them with agentpay {command}.", output, error="not_found"
        )
    shown = ", ".join(found[:_SHOWN_MAX]) + (", …" if len(found) > _SHOWN_MAX else "")
    raise CommandRefusedError(
        f"{len(found)} matches for {what}: {shown}. Pass an identifier.", output, error="ambiguous"
    )
