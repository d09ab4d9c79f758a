"""Methods of the RPC node about accounts."""

import base64
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from solders.account import Account
from solders.litesvm import LiteSVM
from solders.pubkey import Pubkey

from agentpay_server.chain import base58
from agentpay_server.testkit.node import parsed
from agentpay_server.testkit.node.errors import invalid_params
from agentpay_server.testkit.node.group import Json, Method, MethodGroup, decimals_on
from agentpay_server.testkit.node.params import Options, Params, address
from agentpay_server.testkit.node.rendering import account_form, account_json

_MOST_ACCOUNTS: Final = 100
_MOST_FILTERS: Final = 4
_MAX_COMPARED_CHARACTERS: Final = 256


class AccountMethods(MethodGroup):
    """Reads accounts."""

    @property
    def methods(self) -> Mapping[str, Method]:
        """The methods by name."""
        return {
            "getAccountInfo": self._account_info,
            "getBalance": self._balance,
            "getMultipleAccounts": self._multiple_accounts,
            "getProgramAccounts": self._program_accounts,
            "getTokenAccountBalance": self._token_account_balance,
            "getTokenAccountsByOwner": self._token_accounts_by_owner,
        }

    async def _balance(self, params: Params) -> Json:
        wanted = params.address(0)
        self.check(params.options(1))
        return self.in_context(await self.chain.read(lambda svm: svm.get_balance(wanted) or 0))

    async def _account_info(self, params: Params) -> Json:
        return self.in_context((await self._accounts([params.address(0)], params.options(1)))[0])

    async def _multiple_accounts(self, params: Params) -> Json:
        addresses = params.addresses(0, most=_MOST_ACCOUNTS)
        return self.in_context(await self._accounts(addresses, params.options(1), default="base64"))

    async def _accounts(
        self, addresses: Sequence[Pubkey], options: Options, default: str = "binary"
    ) -> list[Json]:
        self.check(options)
        form = account_form(options, default)

        def read(svm: LiteSVM) -> list[Json]:
            return [account_json(svm.get_account(each), form, decimals_on(svm)) for each in addresses]

        return await self.chain.read(read)

    async def _token_account_balance(self, params: Params) -> Json:
        wanted = params.address(0)
        self.check(params.options(1))

        def read(svm: LiteSVM) -> Json:
            account = svm.get_account(wanted)
            if account is None:
                raise invalid_params("could not find account")
            held = parsed.token_account(account)
            if held is None:
                raise invalid_params("not a Token account")
            return parsed.token_amount(held.amount, decimals_on(svm)(held.mint))

        return self.in_context(await self.chain.read(read))

    async def _token_accounts_by_owner(self, params: Params) -> Json:
        wanted, kind, options = params.address(0), params.options(1), params.options(2)
        mint, program = kind.text("mint"), kind.text("programId")
        if (mint is None) == (program is None):
            raise invalid_params("give either mint or programId")
        programs = parsed.TOKEN_PROGRAMS if program is None else (address(program),)
        if not set(programs) <= set(parsed.TOKEN_PROGRAMS):
            raise invalid_params("unrecognized Token program id")
        wanted_mint = None if mint is None else address(mint)

        def matches(account: Account) -> bool:
            held = parsed.token_account(account)
            return held is not None and held.owner == wanted and wanted_mint in (None, held.mint)

        return self.in_context(await self._found(programs, matches, options))

    async def _program_accounts(self, params: Params) -> Json:
        program, options = params.address(0), params.options(1)
        found = await self._found((program,), account_filter(options), options)
        return self.in_context(found) if options.flag("withContext") else found

    async def _found(
        self, programs: Sequence[Pubkey], matches: Callable[[Account], bool], options: Options
    ) -> list[Json]:
        self.check(options)
        form = account_form(options)

        def read(svm: LiteSVM) -> list[Json]:
            accounts = [found for program in programs for found in svm.get_program_accounts(program)]
            return [
                {"pubkey": str(at), "account": account_json(account, form, decimals_on(svm))}
                for at, account in sorted(accounts, key=lambda found: bytes(found[0]))
                if account.lamports and matches(account)
            ]

        return await self.chain.read(read)


def account_filter(options: Options) -> Callable[[Account], bool]:
    """Return whether an account passes all filters of a call's options."""
    filters = [_filter(each) for each in options.items("filters", most=_MOST_FILTERS)]
    return lambda account: all(matches(account) for matches in filters)


def _filter(value: Json) -> Callable[[Account], bool]:
    options = Options(value, "filter") if isinstance(value, dict) else Options({})
    size, compared = options.count("dataSize"), options.options("memcmp")
    if size is not None:
        return lambda account: len(account.data) == size
    if compared is None:
        raise invalid_params("a filter is dataSize or memcmp")
    offset, text = compared.count("offset") or 0, compared.text("bytes") or ""
    encoding = compared.choice("encoding", ("base58", "base64"), "base58")
    if len(text) > _MAX_COMPARED_CHARACTERS:
        raise invalid_params("memcmp compares too many bytes")
    try:
        wanted = base64.b64decode(text, validate=True) if encoding == "base64" else base58.decode(text)
    except ValueError:
        raise invalid_params(f"memcmp: bytes is not {encoding}") from None
    return lambda account: account.data[offset : offset + len(wanted)] == wanted
