"""Methods of the RPC node about past transactions.

All of them are final. Older transactions than `getFirstAvailableBlock` are unknown, as on a node that prunes.
"""

from collections.abc import Mapping
from typing import Final

from solders.litesvm import LiteSVM

from agentpay_server.chain.embedded.blocks import slot_at
from agentpay_server.chain.embedded.executed import Executed
from agentpay_server.testkit.node import rendering
from agentpay_server.testkit.node.group import Json, Method, MethodGroup, decimals_on
from agentpay_server.testkit.node.params import Params
from agentpay_server.testkit.node.transaction_errors import error_json

_MOST_SIGNATURES: Final = 256
_MOST_LINES: Final = 1_000


class HistoryMethods(MethodGroup):
    """Reads executed transactions."""

    @property
    def methods(self) -> Mapping[str, Method]:
        """The methods by name."""
        return {
            "getSignatureStatuses": self._signature_statuses,
            "getSignaturesForAddress": self._signatures_for_address,
            "getTransaction": self._transaction,
        }

    async def _signature_statuses(self, params: Params) -> Json:
        signatures = params.signatures(0, most=_MOST_SIGNATURES)
        params.options(1)
        # Wait until the ledger holds every executed transaction.
        await self.chain.read(lambda _: None)
        found = [self.chain.history.get(signature) for signature in signatures]
        return self.in_context([None if executed is None else _status(executed) for executed in found])

    async def _transaction(self, params: Params) -> Json:
        signature, options = params.signature(0), params.options_or_encoding(1)
        self.check(options)
        encoding = options.choice("encoding", rendering.TRANSACTION_ENCODINGS, "json")
        most_version = options.count("maxSupportedTransactionVersion", most=255)

        def read(svm: LiteSVM) -> Json:
            executed = self.chain.history.get(signature)
            if executed is None:
                return None
            return rendering.transaction_json(executed, encoding, most_version, decimals_on(svm))

        return await self.chain.read(read)

    async def _signatures_for_address(self, params: Params) -> Json:
        wanted, options = params.address(0), params.options(1)
        self.check(options)
        limit = options.count("limit", least=1, most=_MOST_LINES) or _MOST_LINES
        before, until = options.signature("before"), options.signature("until")
        await self.chain.read(lambda _: None)
        lines: list[Json] = []
        is_reached = before is None
        for executed in self.chain.history.of_address(wanted):
            if executed.signature == until or len(lines) == limit:
                break
            if is_reached:
                lines.append(_line(executed))
            is_reached = is_reached or executed.signature == before
        return lines


def _status(executed: Executed) -> Json:
    error = None if executed.error is None else error_json(executed.error)
    return {
        "slot": slot_at(executed.height),
        "confirmations": None,
        "err": error,
        "status": rendering.status_json(error),
        "confirmationStatus": "finalized",
    }


def _line(executed: Executed) -> Json:
    return {
        "signature": executed.signature,
        "slot": slot_at(executed.height),
        "err": None if executed.error is None else error_json(executed.error),
        "memo": rendering.memo_text(executed.transaction),
        "blockTime": executed.time_us // 1_000_000,
        "confirmationStatus": "finalized",
    }
