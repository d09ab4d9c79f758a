"""Waits and sizes that a server or a client fixes, and that a test shortens to reach them: where each is.

No option sets them, so a test cannot reach them otherwise. It names what it shortens; only this table knows
the module.
"""

from pkgutil import resolve_name
from typing import Any

import pytest

_PLACES = {
    "accounts_in_one_transaction": "agentpay_server.chain.transactions:MOST_PROVISIONED",
    "console_requests_kept": "agentpay_server.operators.overview:KEPT",
    "console_operators_kept": "agentpay_server.operators.overview:OPERATORS_MAX",
    "database_answer_seconds": "agentpay_server.plugins.postgres.connections:_ANSWER_SECONDS",
    "database_connecting_seconds": "agentpay_server.plugins.postgres.connections:CONNECTING_SECONDS",
    "database_lock_wait_seconds": "agentpay_server.database.file:_LOCK_WAIT_SECONDS",
    "database_hold_tries": "agentpay_server.plugins.postgres.database:_HOLD_TRIES",
    "database_trying_seconds": "agentpay_server.plugins.postgres.database:_TRYING_SECONDS",
    "deliveries_at_once_of_one_operator": "agentpay_server.ledger.deliveries:OF_ONE_OPERATOR_AT_ONCE",
    "deliveries_at_once_to_one_endpoint": "agentpay_server.ledger.deliveries:TO_ONE_ENDPOINT_AT_ONCE",
    "deliveries_at_once": "agentpay_server.webhooks.sender:ATTEMPTS_AT_ONCE",
    "delivery_lease_us": "agentpay_server.ledger.deliveries:LEASE_US",
    "delivery_settle_seconds": "agentpay_server.webhooks.sender:_SETTLE_SECONDS",
    "delivery_retry_delays_us": "agentpay_server.ledger.deliveries:RETRY_DELAYS_US",
    "delivery_seconds": "agentpay_server.webhooks.http:TIMEOUT_SECONDS",
    "deliveries_replayed_at_once": "agentpay_server.webhooks.deliveries:REPLAYED_AT_ONCE",
    "deposits_retry_us": "agentpay_server.accounts.deposits:RETRY_US",
    "embedded_last_calls_seconds": "agentpay_server.testkit.embedded.owner_thread:_LAST_CALLS_SECONDS",
    "funding_remembered_seconds": "agentpay_server.engine.funding:REMEMBERED_SECONDS",
    "history_batch_of_deposits": "agentpay_server.plugins.cluster.history:_DEPOSIT_BATCH",
    "history_lines": "agentpay_server.plugins.cluster.history:_MAX_LINES",
    "look_ups_at_once_of_one_operator": "agentpay_server.webhooks.http:LOOK_UPS_OF_ONE_OPERATOR",
    "look_ups_until_a_faulty_chain_recovers": "agentpay_server.sandbox.faults:LOOK_UPS_UNTIL_KNOWN",
    "newest_deposits_read": "agentpay_server.accounts.deposits:_NEWEST",
    "posted_batches_of_deposits": "agentpay_server.accounts.deposits:_BATCHES_AT_ONCE",
    "probe_seconds": "agentpay_server.http.operations:PROBE_SECONDS",
    "probed_every_seconds": "agentpay_server.http.operations:PROBED_EVERY_SECONDS",
    "provisioning_seconds": "agentpay_server.accounts.provisioning:COLLECTING_SECONDS",
    "recorded_bytes": "agentpay_server.testkit.embedded.recorder:_BODIES_MAX_BYTES",
    "recorded_requests": "agentpay_server.testkit.embedded.recorder:RECORDS_MAX",
    "schedule_longest_wait_seconds": "agentpay_server.platform.scheduler:_LONGEST_WAIT_SECONDS",
    "schedule_pause_seconds": "agentpay_server.platform.scheduler:_PAUSE_SECONDS",
    "snapshot_rest_seconds": "agentpay_server.sandbox.snapshots:_REST_SECONDS",
    "snapshots_kept": "agentpay_server.sandbox.snapshots:KEPT",
    "late_report_seconds": "agentpay._pay402.timing:LATEST_SECONDS",
    "paid_fetch_settles_seconds": "agentpay._pay402._sync.paid_fetches:SETTLE_SECONDS",
    "paid_fetch_settles_seconds_async": "agentpay._pay402._async.paid_fetches:SETTLE_SECONDS",
    "tool_call_ends_seconds": "agentpay._pay402.tool_calls:_END_SECONDS",
    "tool_call_starts_seconds": "agentpay._pay402.tool_calls:_START_SECONDS",
    "trigger_patience_seconds": "agentpay_server.cli.trigger:_PATIENCE_SECONDS",
    "stream_gap_seconds": "agentpay_server.webhooks.tail:GAP_SECONDS",
    "stream_page": "agentpay_server.webhooks.tail:_PAGE",
    "stream_poll_seconds": "agentpay_server.webhooks.tail:POLL_SECONDS",
    "streams_of_one_key": "agentpay_server.webhooks.tail:STREAMS_OF_ONE_KEY",
    "timeline_lines": "agentpay_server.testkit.embedded.recorder:LINES_MAX",
}


def shorten(patch: pytest.MonkeyPatch, **bounds: Any) -> None:
    """Give bounds other values until the patch is undone."""
    for name, value in bounds.items():
        module, _, attribute = _PLACES[name].partition(":")
        patch.setattr(resolve_name(module), attribute, value)


def value(name: str) -> Any:
    """Return a bound."""
    return resolve_name(_PLACES[name])
