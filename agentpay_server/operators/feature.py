"""The feature: operators and their keys, and what they see of the whole server."""

from typing import Final

from agentpay_server.feature import Core, Feature, Route
from agentpay_server.ledger.audit import AuditTrail
from agentpay_server.operators.keys import Keys
from agentpay_server.operators.overview import Overview, RequestLog
from agentpay_server.operators.search import SearchDesk
from agentpay_server.operators.sign_in import SignIns


class OperatorServices:
    def __init__(self, core: Core) -> None:
        self.requests: RequestLog = core.keep(RequestLog, RequestLog)
        self.keys: Keys = Keys(core.context, are_all_seeded=core.config.seeded_port_keys)
        self.sign_ins: SignIns = SignIns(core.context)
        self.audit: AuditTrail = AuditTrail(core.context)
        self.overview: Overview = Overview(core, self.requests)
        self.search: SearchDesk = SearchDesk(core)


FEATURE: Final[Feature[OperatorServices]] = Feature(
    name="operators",
    build=OperatorServices,
    routes={
        "whoami": Route(200, lambda s: s.keys.identify),
        "agent_keys.create": Route(201, lambda s: s.keys.create_agent_key),
        "agent_keys.list": Route(200, lambda s: s.keys.list_agent_keys),
        "agent_keys.revoke": Route(204, lambda s: s.keys.revoke_agent_key),
        "operator_keys.create": Route(201, lambda s: s.keys.create_operator_key),
        "operator_keys.list": Route(200, lambda s: s.keys.list_operator_keys),
        "operator_keys.revoke": Route(204, lambda s: s.keys.revoke_operator_key),
        "console.sign_in": Route(201, lambda s: s.sign_ins.sign_in),
        "console.create_sign_in_code": Route(201, lambda s: s.sign_ins.create_code),
        "console.summary": Route(200, lambda s: s.overview.summary),
        "console.request_logs.list": Route(200, lambda s: s.overview.requests),
        "console.search": Route(200, lambda s: s.search.search),
        "console.spend_report": Route(200, lambda s: s.search.spend),
        "console.audit_log.list": Route(200, lambda s: s.audit.list),
    },
)
