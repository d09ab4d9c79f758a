"""The operations behind the endpoints, by the endpoint's name: each turns a call into a reply."""

from collections.abc import Awaitable, Callable, Mapping

from agentpay_server.console import Console
from agentpay_server.http.exchange import Call, Reply
from agentpay_server.runtime import Runtime
from agentpay_server.sandbox import Sandbox
from agentpay_server.services.policies import VersionedPolicy

Handler = Callable[[Call], Awaitable[Reply]]


def v1_handlers(runtime: Runtime) -> Mapping[str, Handler]:
    """Return the handlers of `/v1`."""
    accounts, policies, transfers = runtime.accounts, runtime.policies, runtime.transfers
    complete = runtime.context.tasks.complete

    async def create_account(call: Call) -> Reply:
        return Reply(status=201, model=await complete(accounts.create(call.principal, call.body)))

    async def list_accounts(call: Call) -> Reply:
        return Reply(status=200, model=await accounts.list(call.principal, call.query))

    async def get_account(call: Call) -> Reply:
        return Reply(status=200, model=await accounts.get(call.principal, call.path["account_id"]))

    async def get_balance(call: Call) -> Reply:
        return Reply(status=200, model=await accounts.balance(call.principal, call.path["account_id"]))

    async def list_transactions(call: Call) -> Reply:
        page = await runtime.history.list(call.principal, call.path["account_id"], call.query)
        return Reply(status=200, model=page)

    async def get_policy(call: Call) -> Reply:
        return _policy(await policies.get(call.principal, call.path["account_id"]))

    async def put_policy(call: Call) -> Reply:
        if_match = call.headers.get("if-match")
        account_id = call.path["account_id"]
        return _policy(await complete(policies.put(call.principal, account_id, call.body, if_match=if_match)))

    async def create_transfer(call: Call) -> Reply:
        transfer = await transfers.create(call.principal, call.body)
        is_settled = transfer.status == "settled"
        return Reply(status=200 if is_settled else 202, model=transfer)

    async def create_webhook(call: Call) -> Reply:
        return Reply(status=201, model=await runtime.webhooks.create(call.principal, call.body))

    async def get_transfer(call: Call) -> Reply:
        return Reply(status=200, model=await transfers.get(call.principal, call.path["transfer_id"]))

    return {
        "accounts.create": create_account,
        "accounts.list": list_accounts,
        "accounts.get": get_account,
        "accounts.balance": get_balance,
        "accounts.transactions": list_transactions,
        "policies.get": get_policy,
        "policies.put": put_policy,
        "transfers.create": create_transfer,
        "transfers.get": get_transfer,
        "webhooks.create": create_webhook,
    }


def session_handlers(runtime: Runtime) -> Mapping[str, Handler]:
    """Return the handlers of sessions."""
    sessions = runtime.sessions

    async def open_session(call: Call) -> Reply:
        return Reply(status=201, model=await sessions.open(call.principal, call.body))

    async def charge(call: Call) -> Reply:
        session_id = call.path["session_id"]
        return Reply(status=200, model=await sessions.charge(call.principal, session_id, call.body))

    async def close(call: Call) -> Reply:
        return Reply(status=200, model=await sessions.close(call.principal, call.path["session_id"]))

    async def get(call: Call) -> Reply:
        return Reply(status=200, model=await sessions.get(call.principal, call.path["session_id"]))

    async def list_sessions(call: Call) -> Reply:
        return Reply(status=200, model=await sessions.list(call.principal, call.query))

    return {
        "sessions.open": open_session,
        "sessions.charge": charge,
        "sessions.close": close,
        "sessions.get": get,
        "sessions.list": list_sessions,
    }


def console_handlers(runtime: Runtime) -> Mapping[str, Handler]:
    """Return the handlers of the console."""
    console = Console(runtime)
    webhooks, deliveries = runtime.webhooks, runtime.deliveries

    async def list_webhooks(call: Call) -> Reply:
        return Reply(status=200, model=await webhooks.list(call.principal, call.query))

    async def delete_webhook(call: Call) -> Reply:
        await webhooks.delete(call.principal, call.path["webhook_id"])
        return Reply(status=204)

    async def rotate_secret(call: Call) -> Reply:
        webhook_id = call.path["webhook_id"]
        return Reply(status=200, model=await webhooks.rotate_secret(call.principal, webhook_id, call.body))

    async def list_events(call: Call) -> Reply:
        return Reply(status=200, model=await deliveries.list_events(call.principal, call.query))

    async def list_deliveries(call: Call) -> Reply:
        return Reply(status=200, model=await deliveries.list_deliveries(call.principal, call.query))

    async def replay_event(call: Call) -> Reply:
        replayed = await deliveries.replay(call.principal, call.path["event_id"], call.body)
        return Reply(status=202, model=replayed)

    async def list_audit(call: Call) -> Reply:
        return Reply(status=200, model=await console.list_audit(call.principal, call.query))

    return {
        "console.audit.list": list_audit,
        "console.webhooks.list": list_webhooks,
        "console.webhooks.delete": delete_webhook,
        "console.webhooks.rotate_secret": rotate_secret,
        "console.events.list": list_events,
        "console.events.replay": replay_event,
        "console.deliveries.list": list_deliveries,
    }


def key_handlers(runtime: Runtime) -> Mapping[str, Handler]:
    """Return the handlers of the console that make, list and revoke keys."""
    console = Console(runtime)

    async def create_agent_key(call: Call) -> Reply:
        return Reply(status=201, model=await console.create_agent_key(call.principal, call.body))

    async def list_agent_keys(call: Call) -> Reply:
        return Reply(status=200, model=await console.list_agent_keys(call.principal, call.query))

    async def revoke_agent_key(call: Call) -> Reply:
        await console.revoke_agent_key(call.principal, call.path["key_id"])
        return Reply(status=204)

    async def create_operator_key(call: Call) -> Reply:
        return Reply(status=201, model=await console.create_operator_key(call.principal, call.body))

    async def list_operator_keys(call: Call) -> Reply:
        return Reply(status=200, model=await console.list_operator_keys(call.principal, call.query))

    async def revoke_operator_key(call: Call) -> Reply:
        await console.revoke_operator_key(call.principal, call.path["key_id"])
        return Reply(status=204)

    return {
        "console.agent_keys.create": create_agent_key,
        "console.agent_keys.list": list_agent_keys,
        "console.agent_keys.revoke": revoke_agent_key,
        "console.operator_keys.create": create_operator_key,
        "console.operator_keys.list": list_operator_keys,
        "console.operator_keys.revoke": revoke_operator_key,
    }


def console_account_handlers(runtime: Runtime) -> Mapping[str, Handler]:
    """Return the handlers of the console that are about one account."""
    console = Console(runtime)

    async def get_account(call: Call) -> Reply:
        return Reply(status=200, model=await console.account(call.principal, call.path["account_id"]))

    async def allow_signing(call: Call) -> Reply:
        account_id = call.path["account_id"]
        return Reply(status=200, model=await console.allow_signing(call.principal, account_id))

    return {"console.accounts.get": get_account, "console.accounts.allow_signing": allow_signing}


def approval_handlers(runtime: Runtime) -> Mapping[str, Handler]:
    """Return the handlers of the console that decide about transfers."""
    approvals, complete = runtime.approvals, runtime.context.tasks.complete

    async def list_approvals(call: Call) -> Reply:
        return Reply(status=200, model=await approvals.list(call.principal, call.query))

    async def approve_transfer(call: Call) -> Reply:
        transfer_id = call.path["transfer_id"]
        return Reply(status=200, model=await complete(approvals.approve(call.principal, transfer_id)))

    async def reject_transfer(call: Call) -> Reply:
        transfer_id = call.path["transfer_id"]
        rejected = await complete(approvals.reject(call.principal, transfer_id, call.body))
        return Reply(status=200, model=rejected)

    return {
        "console.approvals.list": list_approvals,
        "console.approvals.approve": approve_transfer,
        "console.approvals.reject": reject_transfer,
    }


def sandbox_handlers(runtime: Runtime) -> Mapping[str, Handler]:
    """Return the handlers of the sandbox."""
    sandbox = Sandbox(runtime)
    complete = runtime.context.tasks.complete

    async def fund(call: Call) -> Reply:
        funding = await complete(sandbox.fund(call.principal, call.path["account_id"], call.body))
        return Reply(status=200, model=funding)

    async def create_operator(call: Call) -> Reply:
        return Reply(status=201, model=await sandbox.create_operator(call.principal, call.body))

    async def create_token_account(call: Call) -> Reply:
        return Reply(status=201, model=await complete(sandbox.create_token_account(call.principal)))

    async def get_clock(_: Call) -> Reply:
        return Reply(status=200, model=await sandbox.clock())

    async def advance_clock(call: Call) -> Reply:
        return Reply(status=200, model=await complete(sandbox.advance_clock(call.principal, call.body)))

    async def set_fault(call: Call) -> Reply:
        fault = await complete(sandbox.set_fault(call.principal, call.path["name"], call.body))
        return Reply(status=200, model=fault)

    async def delete_fault(call: Call) -> Reply:
        await complete(sandbox.delete_fault(call.principal, call.path["name"]))
        return Reply(status=204)

    async def list_faults(call: Call) -> Reply:
        return Reply(status=200, model=await sandbox.list_faults(call.principal, call.query))

    async def clear_faults(call: Call) -> Reply:
        await complete(sandbox.clear_faults(call.principal))
        return Reply(status=204)

    return {
        "sandbox.accounts.fund": fund,
        "sandbox.operators.create": create_operator,
        "sandbox.token_accounts.create": create_token_account,
        "sandbox.clock.get": get_clock,
        "sandbox.clock.advance": advance_clock,
        "sandbox.faults.set": set_fault,
        "sandbox.faults.delete": delete_fault,
        "sandbox.faults.list": list_faults,
        "sandbox.faults.clear": clear_faults,
    }


def snapshot_handlers(runtime: Runtime) -> Mapping[str, Handler]:
    """Return the handlers of the sandbox that remember and go back.

    None of them is a task of the server's: those are what they wait for, or cut off.
    """
    sandbox = Sandbox(runtime)

    async def create_snapshot(call: Call) -> Reply:
        return Reply(status=201, model=await sandbox.snapshot(call.principal))

    async def restore_snapshot(call: Call) -> Reply:
        return Reply(status=200, model=await sandbox.restore(call.principal, call.path["snapshot_id"]))

    async def reset(call: Call) -> Reply:
        await sandbox.reset(call.principal)
        return Reply(status=204)

    return {
        "sandbox.snapshots.create": create_snapshot,
        "sandbox.snapshots.restore": restore_snapshot,
        "sandbox.reset": reset,
    }


def _policy(versioned: VersionedPolicy) -> Reply:
    return Reply(status=200, model=versioned.policy, headers=((b"etag", versioned.etag.encode("ascii")),))
