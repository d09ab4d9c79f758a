"""What sessions need of those whose escrow is a channel on chain, which another feature pays with."""

from typing import Protocol

from agentpay.contract.sessions import Session
from agentpay_server.database.tables import SessionRecord
from agentpay_server.platform.principals import Principal


class Channels(Protocol):
    """Closes the channels of sessions over HTTP 402."""

    async def close(self, principal: Principal, session: SessionRecord) -> Session:
        """Begin to close an open session, and return it with the header to present to its seller."""
        ...

    async def advance(self, session_id: str) -> None:
        """Do what is due for a session: close it by force, or post what the chain shows."""
        ...
