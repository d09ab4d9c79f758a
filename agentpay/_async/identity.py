"""The identity of a key, an extension: the implementation of `client.whoami`."""

from typing import Unpack

from agentpay._async.resource import AsyncResource
from agentpay._options import CallOptions
from agentpay._requests import prepare
from agentpay.contract import identity
from agentpay.contract.identity import Identity


class AsyncIdentities(AsyncResource):
    """Calls about the client's own key (interface K10)."""

    async def whoami(self, **options: Unpack[CallOptions]) -> Identity:
        """Read the identity of this client's key, and whether its money is real.

        An extension.

        Args:
            **options: `timeout`, `max_retries` and others: see `CallOptions`.

        Raises:
            NotSupportedError: the service does not offer this extension.
        """
        answer: Identity = await self._call(prepare(identity.WHO_AM_I), options)
        return answer
