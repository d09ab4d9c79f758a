"""The feature: the sandbox, which only test chains have."""

from typing import Final

from agentpay_server.feature import Feature, Route
from agentpay_server.sandbox.service import Sandbox

FEATURE: Final[Feature[Sandbox]] = Feature(
    name="sandbox",
    build=Sandbox,
    routes={
        "sandbox.accounts.fund": Route(
            200, lambda s, c: s.fund(c.principal, c.path["account_id"], c.body), is_owned=True
        ),
        "sandbox.operators.create": Route(201, lambda s, c: s.create_operator(c.principal, c.body)),
        "sandbox.token_accounts.create": Route(
            201, lambda s, c: s.create_token_account(c.principal, c.body), is_owned=True
        ),
        "sandbox.clock.get": Route(200, lambda s, _: s.clock()),
        "sandbox.clock.advance": Route(200, lambda s, c: s.advance_clock(c.principal, c.body), is_owned=True),
        "sandbox.faults.set": Route(
            200, lambda s, c: s.set_fault(c.principal, c.path["name"], c.body), is_owned=True
        ),
        "sandbox.faults.delete": Route(
            204, lambda s, c: s.delete_fault(c.principal, c.path["name"]), is_owned=True
        ),
        "sandbox.faults.list": Route(200, lambda s, c: s.list_faults(c.principal, c.query)),
        "sandbox.faults.clear": Route(204, lambda s, c: s.clear_faults(c.principal), is_owned=True),
        "sandbox.snapshots.create": Route(201, lambda s, c: s.snapshot(c.principal)),
        "sandbox.snapshots.list": Route(200, lambda s, c: s.list_snapshots(c.principal, c.query)),
        "sandbox.snapshots.restore": Route(200, lambda s, c: s.restore(c.principal, c.path["snapshot_id"])),
        "sandbox.reset": Route(204, lambda s, c: s.reset(c.principal)),
    },
)
