"""`agentpay`: every resource, by name, and in the forms that scripts read."""

import csv
import io
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from types import SimpleNamespace

import click
import money
import pytest
import respx
from click.testing import CliRunner
from command_line import NO_CONFIG, CommandLine, pending
from receivers import Receiver
from server_world import Funded

from agentpay import AgentPay, ChainUnavailableError, Payment, testing
from agentpay.cli import COMMANDS, main
from agentpay.cli.commands import Column, Show
from agentpay.cli.output import Output
from agentpay.cli.tables import lines
from agentpay.contract.fields import format_timestamp
from agentpay.types import AccountDetails
from agentpay_server import AgentPayServer
from agentpay_server.cli import main as server_main

ID = re.compile(r"(?:acct|txn|sess|wh|evt|dlv|key)_[0-9a-z]{26}")


@pytest.fixture
def agentpay(server: AgentPayServer) -> CommandLine:
    return CommandLine(server)


def every_command(group: click.Group, *path: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from every_command(command, *path, name)
        else:
            yield (*path, name), command


def test_each_command_is_of_one_program() -> None:
    ours, theirs = dict(every_command(main)), dict(every_command(server_main))
    assert ours.keys() & theirs.keys() == {("completion",)}
    assert ("keys", "generate") in theirs


@pytest.mark.parametrize("arguments", [["accounts", "list"], ["budget"], ["listen", "--json"]])
def test_a_command_of_the_client_is_named_to_those_who_ask_the_server_for_it(arguments: list[str]) -> None:
    result = CliRunner().invoke(server_main, arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"{arguments[0]} is a command of agentpay: run " in result.stderr


@pytest.mark.parametrize("group", [main, server_main])
def test_a_mistyped_command_gets_a_suggestion(group: click.Group) -> None:
    result = CliRunner().invoke(group, ["completon"])
    assert result.exit_code == 2
    assert "No such command 'completon'. Did you mean 'completion'?" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["acounts", "--json"],
        ["--nonsense", "--json"],
        ["accounts", "crate", "--json"],
        ["transfers", "create", "--json"],
        ["transfers", "create", "--json", "--amount", "x"],
        ["keys", "list", "--json", "--key", ""],
    ],
)
def test_a_usage_error_with_json_is_one_line_of_json(arguments: list[str]) -> None:
    result = CliRunner(env={"AGENTPAY_API_KEY": None, "AGENTPAY_CONFIG": NO_CONFIG}).invoke(main, arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert json.loads(line).keys() == {"error", "message"}
    assert json.loads(line)["error"] == "usage"


def test_the_command_list_shows_the_summary_of_each_command() -> None:
    context = click.Context(main)
    for name, (_, short) in COMMANDS.items():
        command = main.get_command(context, name)
        assert command is not None
        assert (command.help or "").split("\n\n")[0].replace("\n", " ") == short


SECRETS = ("--key", "--operator-key", "--metrics-key", "--secret", "--database-url", "--rpc-url")


def test_the_help_of_each_option_with_a_secret_says_who_can_see_it() -> None:
    """`ps` shows command lines to every user of a machine."""
    found = set()
    for path, command in (*every_command(main), *every_command(server_main)):
        for option in command.params:
            named = set(option.opts) & set(SECRETS)
            if named and isinstance(option, click.Option):
                found |= named
                assert "other users of the machine may see command lines" in str(option.help), (path, named)
                # The key of the environment is for the URL of the environment.
                assert option.envvar or path == ("profiles", "add"), (path, named)
    assert found == set(SECRETS)


# --- Accounts


def test_an_account_is_created_funded_limited_and_read_by_its_name(agentpay: CommandLine) -> None:
    made = agentpay.json("accounts", "create", "Research bot")
    assert agentpay.json("accounts", "fund", "Research bot", "12.5")["balance_usdc"] == "12.500000"
    policy = agentpay.json(
        *("accounts", "policy", "@research-bot", "--max-single-transfer", "2.5", "--category", "data"),
        *("--allow", "Research bot", "--require-memo"),
    )
    assert (str(policy["max_single_transfer"]), policy["categories"]) == ("2.5", ["data"])
    assert (policy["allowed_counterparties"], policy["require_memo"]) == ([made["account_id"]], True)
    cleared = agentpay.json(
        *("accounts", "policy", "Research bot", "--max-single-transfer", "none", "--allow-any", "--pause")
    )
    assert cleared.get("max_single_transfer") is None
    assert cleared.get("allowed_counterparties") is None
    assert (cleared["require_memo"], cleared["paused"]) == (True, True)
    assert agentpay.json("accounts", "policy", "Research bot") == cleared
    found = agentpay.json("accounts", "get", made["account_id"])
    assert (found["balance_usdc"], found["status"]) == ("12.500000", "paused")
    assert agentpay.items("accounts", "list", "--status", "active") == []


def test_an_ambiguous_or_unknown_account_name_is_refused(agentpay: CommandLine) -> None:
    first, second = (agentpay.json("accounts", "create", "Twin")["account_id"] for _ in range(2))
    said = agentpay.refused("accounts", "get", "Twin")
    assert "2 matches for account named 'Twin'" in said
    assert first in said
    assert second in said
    said = agentpay.refused("accounts", "get", "Nobody")
    assert said == ("Error: there is no account named 'Nobody'. List them with agentpay accounts list.\n")
    failure = json.loads(agentpay.run("accounts", "get", "Nobody", "--json").stderr)
    assert failure["error"] == "not_found"


def test_a_budget_is_shown_as_a_sentence_and_figures(
    agentpay: CommandLine, server: AgentPayServer, funded: Funded
) -> None:
    account_id = funded("7", name="Bot").account_id
    agentpay.json("accounts", "policy", "Bot", "--max-single-transfer", "2.5")
    assert agentpay.shown("budget", "Bot").startswith("Bot may spend now: 2.50 USDC in one transfer\n")
    assert agentpay.json("budget", account_id)["available_usdc"] == "7.000000"
    agentpay.environment["AGENTPAY_API_KEY"] = server.agent_keys.create(account_id).key
    assert agentpay.json("budget")["account_id"] == account_id
    said = agentpay.refused("transfers", "create", "--to", "Shop", "--amount", "1")
    assert said == "Error: an agent key cannot look up the account named 'Shop': pass its account_id.\n"


def test_funding_without_a_sandbox_shows_the_address_for_usdc(
    agentpay: CommandLine, funded: Funded, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = funded(name="Bot")
    real = AgentPay.request

    def without_sandbox(self: AgentPay, method: str, path: str, **others: object) -> object:
        return real(self, method, path.replace("/ext/v1/sandbox", "/no-such-extension"), **others)  # type: ignore[arg-type]

    monkeypatch.setattr(AgentPay, "request", without_sandbox)
    said = agentpay.refused("accounts", "fund", "Bot", "1")
    assert f"no sandbox. Send USDC to the token account {account.usdc_token_account}" in said


# --- Transfers and sessions


def test_a_transfer_is_checked_made_once_and_listed(agentpay: CommandLine, funded: Funded) -> None:
    funded(name="Payer")
    agentpay.json("accounts", "create", "Shop")
    ends = ("--from", "Payer", "--to", "Shop", "--amount", "1.5")
    assert agentpay.json("transfers", "check", *ends)["decision"] == "settle"
    made = agentpay.json("transfers", "create", *ends, "--memo", "rent", "--idempotency-key", "k1")
    assert agentpay.json("transfers", "create", *ends, "--memo", "rent", "--idempotency-key", "k1") == made
    (listed,) = agentpay.items("transfers", "list", "--account", "Payer", "--status", "settled")
    assert listed["transfer_id"] == made["transfer_id"]
    assert agentpay.json("transfers", "get", made["transfer_id"])["memo"] == "rent"
    shown = agentpay.shown("transfers", "list").splitlines()
    assert re.fullmatch(rf"Payer +1\.50 +settled +Shop +\S+ +rent +{made['transfer_id']}", shown[1]), shown


def test_a_refusal_that_is_repeated_says_when_it_was_decided(
    server: AgentPayServer, agentpay: CommandLine, client: AgentPay, funded: Funded
) -> None:
    payer = funded(name="Payer")
    client.policies.update(payer.account_id, max_single_transfer="1")
    agentpay.json("accounts", "create", "Shop")
    pay = (
        "transfers",
        "create",
        "--from",
        "Payer",
        "--to",
        "Shop",
        "--amount",
        "2",
        "--idempotency-key",
        "k1",
    )
    first, decided_at = agentpay.refused(*pay, exit_code=5), format_timestamp(server.sandbox.clock.now())
    assert "decided at" not in first
    server.sandbox.clock.advance(hours=2)
    words = f"That was decided at {decided_at}, and is repeated for its idempotency key. No money moved."
    assert words in agentpay.refused(*pay, exit_code=5)
    assert json.loads(agentpay.run(*pay, "--json").stderr)["decided_at"] == decided_at


def test_a_transfer_with_unknown_outcome_exits_with_6_and_explains_how_to_resume(
    server: AgentPayServer, agentpay: CommandLine, funded: Funded
) -> None:
    funded(name="Payer")
    agentpay.json("accounts", "create", "Shop")
    server.sandbox.set_fault("http:POST /v1/transfers", effect="reply_lost")
    ends = ("--from", "Payer", "--to", "Shop", "--amount", "1.5")
    result = agentpay.run("transfers", "create", *ends, "--json")
    server.sandbox.clear_faults()
    assert (result.exit_code, result.stdout) == (6, "")
    failure = json.loads(result.stderr)
    assert failure["error"] == "outcome_unknown"
    agentpay.json("transfers", "create", *ends, "--idempotency-key", failure["idempotency_key"])
    assert len(agentpay.items("transfers", "list")) == 1


def test_an_agents_key_pays_from_its_account(
    server: AgentPayServer, agentpay: CommandLine, funded: Funded
) -> None:
    account_id = funded(name="Payer").account_id
    payee = agentpay.json("accounts", "create", "Shop")["account_id"]
    assert "an operator key has many accounts" in agentpay.refused(
        "transfers", "create", "--to", payee, "--amount", "1"
    )
    agentpay.environment["AGENTPAY_API_KEY"] = agentpay.shown(
        "keys", "create", "--account", "Payer", "-q"
    ).strip()
    assert agentpay.json("whoami")["account_id"] == account_id
    assert agentpay.json("transfers", "create", "--to", payee, "--amount", "1")["from"] == account_id
    # It may not list accounts, so identifiers are shown instead of names.
    assert account_id in agentpay.shown("transfers", "list")


def test_a_session_is_opened_charged_and_closed(agentpay: CommandLine, funded: Funded) -> None:
    funded(name="Payer")
    agentpay.json("accounts", "create", "Shop")
    session_id = agentpay.shown(
        "sessions", "open", "--from", "Payer", "--to", "Shop", "--cap", "2", "--quiet"
    ).strip()
    agentpay.json("sessions", "charge", session_id, "0.75")
    assert agentpay.json("sessions", "get", session_id)["running_total_usdc"] == "0.750000"
    shown = agentpay.shown("sessions", "list", "--account", "Payer", "--status", "open")
    assert re.search(rf"Payer +0\.75 +2\.00 +open +.* {session_id}", shown), shown
    assert agentpay.json("sessions", "close", session_id)["settled_usdc"] == "0.750000"


def test_payments_are_listed_with_seller_and_payer_and_shown() -> None:
    """The exchange is exact here: that sellers are paid is tested where payments are."""
    account = testing.make(AccountDetails, name="Payer")
    payment = testing.make(
        Payment, status="settled", account_id=account.account_id, origin="https://api.example"
    )
    page = {"data": [payment.to_dict()], "cursor": "", "has_more": False}
    environment = {
        "AGENTPAY_BASE_URL": "https://pay.example",
        "AGENTPAY_API_KEY": "ap_operator_x",
        "AGENTPAY_CONFIG": NO_CONFIG,
    }
    runner = CliRunner(env=environment)
    with respx.mock(base_url="https://pay.example") as service:
        listed = service.get("/ext/v1/payments").respond(json=page)
        service.get("/ext/v1/console/accounts").respond(
            json={"data": [account.to_dict()], "cursor": "", "has_more": False}
        )
        service.get(f"/ext/v1/payments/{payment.transfer_id}").respond(json=payment.to_dict())
        result = runner.invoke(
            main,
            [
                "payments",
                "list",
                "--account",
                "Payer",
                "--status",
                "settled",
                "--seller",
                "https://api.example",
            ],
        )
        assert result.exit_code == 0, result.output
        pattern = rf"Payer +\d+\.\d+ +settled +api\.example .*{payment.transfer_id}"
        assert re.search(pattern, result.stdout), result.stdout
        query = dict(listed.calls.last.request.url.params)
        assert query == {
            "account_id": account.account_id,
            "status": "settled",
            "origin": "https://api.example",
            "limit": "100",
        }
        shown = runner.invoke(main, ["payments", "get", payment.transfer_id, "--json"])
        assert json.loads(shown.stdout)["origin"] == "https://api.example"


# --- Webhooks, events, keys


def test_a_webhook_is_created_listed_rotated_and_deleted_by_its_url(
    server: AgentPayServer, agentpay: CommandLine, funded: Funded
) -> None:
    account_id = funded(name="Payer").account_id
    with Receiver() as receiver:
        secret = agentpay.shown(
            *("webhooks", "create", receiver.url, "--events", "transfer.*,session.opened"),
            *("--account", "Payer", "--low-balance", "2", "-q"),
        )
        assert secret.startswith("whsec_")
        (webhook,) = agentpay.items("webhooks", "list")
        types = ["transfer.initiated", "transfer.settled", "transfer.rejected", "session.opened"]
        assert (webhook["events"], webhook["account_ids"]) == (types, [account_id])
        assert agentpay.json("webhooks", "rotate", receiver.url, "--overlap", "0")["secret"] != secret.strip()
        assert agentpay.json("webhooks", "delete", receiver.url) == {
            "webhook_id": webhook["webhook_id"],
            "status": "deleted",
        }
    assert "No webhooks. Create one with agentpay webhooks create URL." in agentpay.shown("webhooks", "list")


def test_events_are_listed_and_replayed(
    server: AgentPayServer, agentpay: CommandLine, funded: Funded
) -> None:
    payer = funded(name="Payer").account_id
    agentpay.json("accounts", "create", "Shop")
    inbox = server.webhook_inbox(events=["transfer.settled"])
    agentpay.json("transfers", "create", "--from", payer, "--to", "Shop", "--amount", "1")
    (event,) = agentpay.items("events", "list", "--type", "transfer.settled", "--account", "Payer")
    shown = agentpay.shown("events", "list", "--type", "transfer.settled")
    assert re.search(rf"transfer\.settled +Payer +1\.00 +{event['id']}", shown), shown
    (delivery,) = agentpay.items("events", "replay", event["id"])
    assert delivery["webhook_id"] == inbox.webhook_id


def test_a_key_is_revoked_by_its_name(agentpay: CommandLine, funded: Funded) -> None:
    funded(name="Payer")
    agentpay.json("keys", "create", "--account", "Payer", "--name", "laptop")
    agentpay.json("operator-keys", "create", "deploy")
    assert agentpay.json("keys", "revoke", "laptop")["status"] == "revoked"
    assert agentpay.json("operator-keys", "revoke", "deploy")["status"] == "revoked"
    assert "there is no agent key named 'laptop'" in agentpay.refused("keys", "revoke", "laptop")


# --- Forms


def test_identifiers_are_whole_on_one_line_at_every_width(
    server: AgentPayServer,
    agentpay: CommandLine,
    client: AgentPay,
    funded: Funded,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    account_id = funded(name="A research bot with a very long name indeed, longer than most").account_id
    inbox = server.webhook_inbox()
    agentpay.json("keys", "create", "--account", account_id, "--name", "a name that is rather long for a key")
    agentpay.json("sessions", "open", "--from", account_id, "--to", _shop(client), "--cap", "1")
    pending(client, account_id, memo="a memo that is far too long for a table of transfers")
    server.sandbox.clock.advance(0)
    assert inbox.webhook_id

    real = Output.__init__
    widths = [80]

    def on_a_narrow_terminal(self: Output, *, is_json: bool, is_quiet: bool = False) -> None:
        real(self, is_json=is_json, is_quiet=is_quiet)
        self._out.width = widths[-1]

    monkeypatch.setattr(Output, "__init__", on_a_narrow_terminal)
    lists = ("accounts", "transfers", "sessions", "approvals", "webhooks", "events", "deliveries", "keys")
    for name in lists:
        count = len(agentpay.items(name, "list"))
        assert count, name
        for width in (80, 100, 200):
            widths.append(width)
            heading, *rows = agentpay.shown(name, "list").splitlines()
            assert len(rows) == count
            for row in rows:
                assert len(row) <= width, (name, row)
                assert ID.search(row), (name, row)
                # Nothing is a part of an identifier: what is shown of one is all of it.
                assert not re.search(r"\b(?:acct|txn|sess|wh|evt|dlv|key)_[0-9a-z]{0,25}\b", row), (name, row)
            assert len(heading) <= width
            wide = agentpay.shown(name, "list", "--wide")
            assert "…" not in wide
        shortest = agentpay.shown(name, "list", "--quiet").splitlines()
        assert [bool(ID.fullmatch(line)) for line in shortest] == [True] * count


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (80, ["from", "amount", "to", "memo", "transfer_id"]),
        (70, ["from", "amount", "to", "transfer_id"]),
        (58, ["from", "amount", "transfer_id"]),
    ],
)
def test_a_narrow_list_gives_up_optional_columns_before_it_cuts_names(width: int, shown: list[str]) -> None:
    item = {"from": "Travel desk", "amount": "30.34", "to": "Airline", "memo": "flight AP642 to Lisbon"}
    item["transfer_id"] = "txn_01m81gj57139m4r30pnzgsdzkf"
    columns = [
        Column("from", itemgetter("from"), is_text=True),
        Column("amount", itemgetter("amount")),
        Column("to", itemgetter("to"), show=Show.IF_IT_FITS),
        Column("memo", itemgetter("memo"), is_text=True, show=Show.IF_IT_FITS),
        Column("transfer_id", itemgetter("transfer_id")),
    ]
    printed = lines([item], columns, width=width, is_wide=False, now=datetime.now(UTC))
    heading, row = (line.plain for line in printed)
    assert heading.split() == shown
    assert row.startswith("Travel desk  30.34")
    assert row.endswith(item["transfer_id"])
    assert len(row) <= width


def test_a_column_that_fits_is_shown_though_a_better_one_does_not() -> None:
    columns = [
        Column("from", itemgetter("from")),
        Column("to", itemgetter("to"), show=Show.IF_IT_FITS),
        Column("settled", itemgetter("settled"), show=Show.IF_IT_FITS),
    ]
    item = {"from": "Payer", "to": "x" * 60, "settled": "3s ago"}
    heading, _ = lines([item], columns, width=40, is_wide=False, now=datetime.now(UTC))
    assert heading.plain.split() == ["from", "settled"]


def test_a_narrow_list_shortens_on_chain_addresses_to_their_ends() -> None:
    item = {
        "to": "9hbi8MGyS4FvbPawwshQMzj3mZ698aj6gEYduAEqXhwt",
        "transfer_id": "txn_01m81gj57139m4r30pnzgsdzkf",
    }
    columns = [
        Column("to", itemgetter("to"), show=Show.IF_IT_FITS),
        Column("transfer_id", itemgetter("transfer_id")),
    ]
    shown = {
        (width, is_wide): lines([item], columns, width=width, is_wide=is_wide, now=datetime.now(UTC))[1].plain
        for width, is_wide in ((60, False), (60, True), (80, False))
    }
    whole = "  ".join(item.values())
    assert shown == {
        (60, False): whole.replace(item["to"], "9hbi…Xhwt"),
        (60, True): whole,
        (80, False): whole,
    }


def test_a_webhook_is_shown_with_its_identifier_first_and_says_that_it_is_for_all_accounts(
    agentpay: CommandLine,
) -> None:
    shown = agentpay.shown("webhooks", "create", "http://127.0.0.1:9/hooks").splitlines()
    assert shown[1].startswith("webhook_id")
    assert [line.split()[1] for line in shown if line.startswith("account_ids")] == ["all"]


def test_funding_is_shown_with_the_account_first(agentpay: CommandLine, funded: Funded) -> None:
    account_id = funded(name="Payer").account_id
    shown = agentpay.shown("accounts", "fund", "Payer", "5").splitlines()
    assert shown[1].split() == ["account_id", account_id]
    assert agentpay.shown("accounts", "fund", "Payer", "5", "--quiet") == f"{account_id}\n"


def test_quiet_policy_output_is_the_account_identifier(agentpay: CommandLine, funded: Funded) -> None:
    account_id = funded(name="Payer").account_id
    assert agentpay.shown("accounts", "policy", "Payer", "--quiet") == f"{account_id}\n"
    assert agentpay.shown("accounts", "policy", "Payer", "--pause", "--quiet") == f"{account_id}\n"


def test_an_outage_of_the_chain_stops_neither_a_pause_nor_a_list(
    server: AgentPayServer, client: AgentPay, agentpay: CommandLine, funded: Funded
) -> None:
    account_id = funded(name="Buyer").account_id
    server.sandbox.set_fault("chain_down")
    for read in (client.accounts.get, client.accounts.balance):
        with pytest.raises(ChainUnavailableError):
            read(account_id, max_retries=0)
    (listed,) = agentpay.items("accounts", "list")
    assert (listed["account_id"], listed["balance_usdc"], listed["status"]) == (account_id, None, "active")
    assert "Buyer" in agentpay.shown("search", "buyer")
    assert agentpay.json("accounts", "policy", "@buyer", "--pause")["paused"] is True
    assert agentpay.json("accounts", "get", "Buyer")["status"] == "paused"
    assert not client.console.summary().is_chain_reachable


def test_a_suspended_account_says_why_and_is_unblocked(
    server: AgentPayServer, agentpay: CommandLine, funded: Funded
) -> None:
    payer, payee = funded("10", name="Buyer"), funded("1", name="Shop")
    signature = money.suspend(server, payer, payee, 2_000_000)
    assert "suspended" in agentpay.shown("accounts", "list")
    found = agentpay.json("accounts", "get", "Buyer")
    assert found["signing_stopped_at"] is not None
    assert found["suspension"] == {
        "cause": "unknown_debit",
        "subject": payer.account_id,
        "tx_signature": signature,
        "chain_explorer_url": found["suspension"]["chain_explorer_url"],
    }
    unblocked = agentpay.json("accounts", "unblock", "Buyer")
    assert (unblocked["signing_stopped_at"], unblocked["suspension"]) == (None, None)


def test_a_list_as_csv_is_whole_and_within_its_period(
    server: AgentPayServer, client: AgentPay, agentpay: CommandLine, funded: Funded
) -> None:
    payer, payee = funded("10", name="=Buyer"), client.accounts.create(name="Shop")
    began = server.sandbox.clock.now()
    for number in range(3):
        server.sandbox.clock.advance(60)
        client.transfers.create(from_=payer.account_id, to=payee.account_id, amount=number + 1)
    first, last = (format_timestamp(began + timedelta(minutes=minutes)) for minutes in (1, 3))

    def amounts(*command: str) -> list[str]:
        rows = csv.DictReader(io.StringIO(agentpay.shown(*command, "--csv")))
        return [row.get("amount_usdc") or row["name"] for row in rows]

    for listed in (("transfers", "list"), ("accounts", "history", "=Buyer")):
        assert amounts(*listed, "--since", first, "--until", last) == ["3.000000", "2.000000"]
        assert amounts(*listed, "--until", first)[0] == "1.000000"
        assert amounts(*listed, "--limit", "1") == ["3.000000"]
    # As a server of the version before wrote it during an upgrade.
    money.change(server, "entries", {"operator_id": ""}, amount=3_000_000)
    assert amounts("accounts", "history", "=Buyer", "--since", first) == ["3.000000", "2.000000"]
    assert amounts("accounts", "list", "--until", first) == ["Shop", "'=Buyer"]
    assert amounts("accounts", "list", "--since", first) == []
    assert agentpay.unwritten("transfers", "list", "--csv")[0] == 3
    assert agentpay.run("transfers", "list", "--csv", "--json").exit_code == 2


def test_help_is_not_cut_off_at_80_columns() -> None:
    groups = {path[:-1] for path, _ in every_command(server_main)}
    for path in groups:
        result = CliRunner().invoke(server_main, [*path, "--help"], terminal_width=80)
        assert "..." not in result.stdout.partition("Commands:")[2], path


def test_a_command_of_the_server_says_what_to_install() -> None:
    started = "import sys; sys.modules['solders'] = None; sys.argv[1:] = ['serve']; import runpy; "
    ended = subprocess.run(
        [sys.executable, "-c", f"{started}runpy.run_module('agentpay_server', run_name='__main__')"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (1, "")
    assert re.fullmatch(r"Error: serve needs solders, which is not installed: .*\[server\]'\n", ended.stderr)


def _shop(client: AgentPay) -> str:
    return client.accounts.create(name="Shop").account_id


def test_a_list_is_followed_as_it_changes(
    agentpay: CommandLine, client: AgentPay, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = client.accounts.create(name="First")
    looks = 0

    def sleep(_: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 2:
            client.policies.update(first.account_id, paused=True)
            client.accounts.create(name="Second")
        if looks == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr("agentpay.cli.listing.time", SimpleNamespace(sleep=sleep))
    result = agentpay.run("accounts", "list", "--watch", "--json")
    assert result.exit_code == 0
    shown = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(each["name"], each["status"]) for each in shown] == [
        ("First", "active"),
        ("First", "paused"),
        ("Second", "active"),
    ]


def test_following_continues_when_the_server_is_back(
    server: AgentPayServer, agentpay: CommandLine, client: AgentPay, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0

    def sleep(_: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 1:
            server.sandbox.set_fault("http:GET /ext/v1/console/accounts", effect="internal_error")
        if looks == 2:
            server.sandbox.clear_faults()
            client.accounts.create(name="Later")
        if looks == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("agentpay.cli.listing.time", SimpleNamespace(sleep=sleep))
    result = agentpay.run("accounts", "list", "--watch", "-q")
    assert result.exit_code == 0
    assert "Cannot read the list, retrying" in result.stderr
    assert len(result.stdout.splitlines()) == 1


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize(("program", "group"), [("agentpay", main), ("agentpay-server", server_main)])
def test_a_shell_completes_commands_and_event_types(program: str, group: click.Group, shell: str) -> None:
    result = CliRunner().invoke(group, ["completion", shell], prog_name=program)
    assert result.exit_code == 0
    variable = f"_{program.replace('-', '_').upper()}_COMPLETE"
    assert f"{variable}={shell}_complete" in result.stdout
    command, expected = {
        "agentpay": ("listen --events transfer.settled,escal", "transfer.settled,escalation.required"),
        "agentpay-server": ("serve --log-f", "--log-format"),
    }[program]
    typed = f"{program} {command}"
    words = {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1)}
    if shell == "fish":
        words["COMP_CWORD"] = typed.rsplit(maxsplit=1)[-1]
    completed = CliRunner(env={**words, variable: f"{shell}_complete"}).invoke(group, [], prog_name=program)
    assert expected in completed.output
