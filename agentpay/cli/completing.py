"""Completion of what a service knows: accounts, keys, webhooks and waiting transfers; and of it in bash.

Nothing is completed if no service is set up, if it does not respond, or if its key may not look.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Final

import click
from click.shell_completion import BashComplete, CompletionItem, add_completion_class, split_arg_string

from agentpay.cli.options import KEY_VARIABLE, URL_VARIABLE

_PAGE: Final = 100
_FOUND: Final = 20
_QUOTED: Final = {'"': re.compile(r'(["\\$`])'), "": re.compile(r"([^\w@%+=:,./-])"), "'": re.compile("(?!)")}
"""For each quote that a word may begin with, what a backslash must precede in it."""


def completed(context: click.Context, kind: str, incomplete: str) -> list[CompletionItem]:
    """Complete names and identifiers of one kind, from the service that is set up."""
    from agentpay import errors
    from agentpay.cli.connection import address_of, client_of

    variables = {"url": URL_VARIABLE, "key": KEY_VARIABLE}
    # Completion has read the options only in part.
    given = {name: context.params.get(name) or os.environ.get(each) for name, each in variables.items()}
    try:
        address = address_of(**given, profile=context.params.get("profile"))
        with client_of(address).with_options(max_retries=0) as server:
            words = dict(_SOURCES[kind](server, incomplete))
    except (click.ClickException, errors.AgentPayError, ValueError):
        return []
    return [
        CompletionItem(word, help=about)
        for word, about in words.items()
        if word.startswith(incomplete) and word.isprintable()
    ]


_Words = Iterator[tuple[str, str | None]]


def _accounts(server: Any, incomplete: str) -> _Words:  # noqa: ANN401 - as below
    # Not those of the contract, whose balances are live: they cannot be read while the chain is away.
    page = server.console.list_details(limit=_PAGE)
    found: Iterable[Any] = page.data
    if page.has_more and incomplete.strip():
        found = (*found, *server.console.search(incomplete[:_PAGE], limit=_FOUND).accounts)
    for account in found:
        yield from ((word, None) for word in (account.name, account.handle, account.account_id))


def _keys(keys: Iterable[Any]) -> _Words:
    for key in keys:
        yield from ((word, None) for word in (key.name, key.key_id) if word)


def _webhooks(server: Any, _: str) -> _Words:  # noqa: ANN401 - as below
    for webhook in server.webhooks.list(limit=_PAGE):
        yield from ((word, None) for word in (webhook.url, webhook.webhook_id))


def _waiting(server: Any, _: str) -> _Words:  # noqa: ANN401 - as below
    from agentpay.cli.tables import amount

    for each in server.approvals.list(limit=_PAGE):
        yield each.transfer_id, f"{amount(each.amount_usdc)} USDC {each.memo or each.category or ''}".rstrip()


_SOURCES: Final[Mapping[str, Callable[[Any, str], _Words]]] = {
    "account": _accounts,
    "own account": _accounts,
    "payee": _accounts,
    "agent key": lambda server, _: _keys(server.agent_keys.list(limit=_PAGE)),
    "operator key": lambda server, _: _keys(server.operator_keys.list(limit=_PAGE)),
    "webhook": _webhooks,
    "waiting transfer": _waiting,
}
"""For each kind, what reads its words, each with a description or none, from a client."""


class QuotingBash(BashComplete):
    """Completion for bash, which splits words at `:` and `@`, and inserts what it is given as it is."""

    name: ClassVar[str] = "quotingbash"
    source_template: ClassVar[str] = """\
%(complete_func)s() {
    local IFS=$'\\n' type value
    COMPREPLY=()
    while IFS=, read -r type value; do
        if [[ $type == plain ]]; then
            COMPREPLY+=("$value")
        elif [[ $type ]]; then
            compopt -o default
        fi
    done < <(env COMP_LINE="${COMP_LINE:0:COMP_POINT}" COMP_WORD="${COMP_WORDS[COMP_CWORD]}" COMP_TEXT="$2" \\
        %(complete_var)s=quotingbash_complete "$1")
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the cursor, and the one at it; notes its quote, and what bash keeps."""
        line, replaced, quote = os.environ["COMP_LINE"], os.environ["COMP_TEXT"], os.environ["COMP_WORD"][:1]
        _, *words = split_arg_string(line)
        incomplete = words.pop() if words and (replaced or not line.endswith(" ")) else ""
        self._quote = quote if quote in ("'", '"') else ""
        self._kept = incomplete.removesuffix("".join(split_arg_string(self._quote + replaced)))
        return words, incomplete

    def format_completion(self, item: CompletionItem) -> str:
        """Return the item without what bash keeps, quoted as the word is."""
        value = _QUOTED[self._quote].sub(r"\\\1", item.value.removeprefix(self._kept))
        return f"{item.type},{value}"


add_completion_class(QuotingBash)
