# Generated from _async by scripts/unasync.py. Edit that one.
"""The implementation of `client.whoami` and `client.summary`, two extensions."""

from typing import Unpack

from agentpay._sync.resource import Resource
from agentpay._options import CallOptions
from agentpay._requests import prepare
from agentpay.contract import console, identity
from agentpay.contract.console import ConsoleSummary
from agentpay.contract.identity import Identity


class Identities(Resource):
    """Calls about the client's own key and its operator."""

    def whoami(self, **options: Unpack[CallOptions]) -> Identity:
        """Read the identity of this client's key, and whether its money is real.

        An extension.

        Args:
            **options: `timeout`, `max_retries` and others: see `CallOptions`.

        Raises:
            NotSupportedError: the service does not offer this extension.
        """
        answer: Identity = self._call(prepare(identity.WHO_AM_I), options)
        return answer

    def summary(self, **options: Unpack[CallOptions]) -> ConsoleSummary:
        """Count accounts, pending approvals, undelivered deliveries and open sessions.

        Args:
            **options: `timeout`, `max_retries` and others: see `CallOptions`.
        """
        summary: ConsoleSummary = self._call(prepare(console.GET_SUMMARY), options)
        return summary
