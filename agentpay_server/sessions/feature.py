"""The feature: sessions, a cap in escrow."""

from typing import Any, Final

from agentpay_server.feature import Core, Feature, Phase, Route
from agentpay_server.sessions.closing import SESSION_SETTLE, Closing, SessionSchedule
from agentpay_server.sessions.opening import SESSION_OPEN
from agentpay_server.sessions.service import Sessions


class SessionServices:
    def __init__(self, core: Core) -> None:
        self.is_alone: bool = core.is_alone or core.context.clock.is_manual
        closing = Closing(core.context, core.settlement)
        # The plug-in that opens sessions with channels closes them; without it, there are none.
        channels: Any = getattr(core.built.get("channels"), "closing", None)
        self.sessions: Sessions = Sessions(core.context, core.settlement, closing, core.authorizer, channels)
        self.schedule: SessionSchedule = SessionSchedule(core.context, closing, channels)

    async def recover(self) -> None:
        # Other servers may be settling those that they have claimed.
        if self.is_alone:
            await self.schedule.resume()


FEATURE: Final[Feature[SessionServices]] = Feature(
    name="sessions",
    build=SessionServices,
    movements=(SESSION_OPEN, SESSION_SETTLE),
    work=lambda s: [(Phase.LATER, s.schedule)],
    recover=SessionServices.recover,
    routes={
        "sessions.open": Route(201, lambda s: s.sessions.open),
        "sessions.charge": Route(200, lambda s: s.sessions.charge),
        "sessions.close": Route(200, lambda s: s.sessions.close),
        "sessions.get": Route(200, lambda s: s.sessions.get),
        "sessions.list": Route(200, lambda s: s.sessions.list),
    },
)
