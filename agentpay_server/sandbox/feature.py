"""The feature: the sandbox, which only test chains have."""

from typing import Final

from agentpay_server.feature import Feature, Route
from agentpay_server.sandbox.service import Sandbox

FEATURE: Final[Feature[Sandbox]] = Feature(
    name="sandbox",
    build=Sandbox,
    routes={
        "sandbox.accounts.fund": Route(200, lambda s: s.fund, is_owned=True),
        "sandbox.operators.create": Route(201, lambda s: s.create_operator),
        "sandbox.token_accounts.create": Route(201, lambda s: s.create_token_account, is_owned=True),
        "sandbox.clock.get": Route(200, lambda s: s.clock),
        "sandbox.clock.advance": Route(200, lambda s: s.advance_clock, is_owned=True),
        "sandbox.faults.set": Route(200, lambda s: s.set_fault, is_owned=True),
        "sandbox.faults.delete": Route(204, lambda s: s.delete_fault, is_owned=True),
        "sandbox.faults.list": Route(200, lambda s: s.list_faults),
        "sandbox.faults.clear": Route(204, lambda s: s.clear_faults, is_owned=True),
        "sandbox.snapshots.create": Route(201, lambda s: s.snapshot),
        "sandbox.snapshots.list": Route(200, lambda s: s.list_snapshots),
        "sandbox.snapshots.restore": Route(200, lambda s: s.restore),
        "sandbox.reset": Route(204, lambda s: s.reset),
    },
)
