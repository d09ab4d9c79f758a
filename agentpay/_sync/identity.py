# Generated from _async by scripts/unasync.py. Edit that one.
"""The identity of a key, an extension: the implementation of `client.whoami`."""

from typing import Unpack

from agentpay._sync.resource import Resource
from agentpay._options import CallOptions
from agentpay._requests import prepare
from agentpay.contract import identity
from agentpay.contract.identity import Identity


class Identities(Resource):
    """Calls about the client's own key (interface K10)."""

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
