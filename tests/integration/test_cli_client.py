"""`agentpay`: every resource, by name, and in the forms that scripts read."""

import csv
import io
import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, time, timedelta
from operator import itemgetter
from types import SimpleNamespace
from typing import Any

import click
import money
import pytest
from click.shell_completion import BashComplete
from click.testing import CliRunner
from command_line import NO_CONFIG, CommandLine, pending
from receivers import Receiver

from agentpay import AgentPay, ChainUnavailableError
from agentpay.cli import COMMANDS, main
from agentpay.cli.commands import Column, Show
from agentpay.cli.options import MOMENT
from agentpay.cli.output import Output
from agentpay.cli.tables import lines
from agentpay.contract.fields import format_timestamp
from agentpay_server.cli import COMMANDS as SERVER_COMMANDS
from agentpay_server.cli import main as server_main

ID = re.compile(r"(?:acct|txn|sess|wh|evt|dlv|key)_[0-9a-z]{26}")


def every_command(group: click.Group, *path: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from every_command(command, *path, name)
        else:
            yield (*path, name), command


def test_each_command_is_of_one_program_and_each_secret_has_a_warning() -> None:
    """`ps` shows command lines to every user of a machine."""
    ours, theirs = dict(every_command(main)), dict(every_command(server_main))
    assert ours.keys() & theirs.keys() == {("completion",), ("console-link",)}
    assert ("keys", "generate") in theirs
    found = set()
    for path, command in (*ours.items(), *theirs.items()):
        assert "--json" in [option for parameter in command.params for option in parameter.opts], path
        for option in command.params:
            named = set(option.opts) & set(SECRETS)
            if named and isinstance(option, click.Option):
                found |= named
                assert "other users of the machine may see command lines" in str(option.help), (path, named)
                # The key of the environment is for the URL of the environment.
                assert option.envvar or path == ("profiles", "add"), (path, named)
    assert found == set(SECRETS)


@pytest.mark.parametrize(
    ("group", "arguments", "says"),
    [
        (server_main, ["accounts", "list"], "accounts is a command of agentpay: run "),
        (server_main, ["budget"], "budget is a command of agentpay: run "),
        (server_main, ["listen", "--json"], "listen is a command of agentpay: run "),
        (server_main, ["completon"], "No such command 'completon'. Did you mean 'completion'?"),
        (main, ["completon"], "No such command 'completon'. Did you mean 'completion'?"),
        (main, ["login"], "No such command 'login'. Run agentpay console-link"),
        (main, ["logs", "x"], "'logs'. Run agentpay events list, agentpay requests list or agentpay audit"),
        (main, ["balance", "Bot"], "Run agentpay accounts get, or with an agent key agentpay budget."),
        (
            main,
            ["pause", "Bot"],
            "Run agentpay accounts policy ACCOUNT --pause, or agentpay accounts pause-all.",
        ),
        (
            main,
            ["accounts", "pause", "Bot"],
            "Run agentpay accounts policy ACCOUNT --pause, or agentpay accounts pause-all.",
        ),
        (main, ["transfers", "send"], "Run agentpay transfers create."),
        (main, ["version"], "Run agentpay --version."),
        (server_main, ["version"], "Run agentpay --version."),
        (main, ["accounts", "lst"], "No such command 'lst'."),
    ],
)
def test_a_command_that_does_not_exist_gets_a_suggestion(
    group: click.Group, arguments: list[str], says: str
) -> None:
    result = CliRunner().invoke(group, arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert says in result.stderr


def test_a_usage_error_with_json_is_one_line_of_json() -> None:
    for arguments in (
        ["acounts", "--json"],
        ["--nonsense", "--json"],
        ["accounts", "crate", "--json"],
        ["transfers", "create", "--json"],
        ["transfers", "create", "--json", "--amount", "x"],
        ["keys", "list", "--json", "--key", ""],
    ):
        runner = CliRunner(env={"AGENTPAY_API_KEY": None, "AGENTPAY_CONFIG": NO_CONFIG})
        result = runner.invoke(main, arguments)
        assert (result.exit_code, result.stdout) == (2, ""), arguments
        (line,) = result.stderr.splitlines()
        assert json.loads(line).keys() == {"error", "message"}
        assert json.loads(line)["error"] == "usage"


@pytest.mark.parametrize(("group", "listed"), [(main, COMMANDS), (server_main, SERVER_COMMANDS)])
def test_the_help_shows_the_summary_of_each_command(group: click.Group, listed: dict[str, Any]) -> None:
    context = click.Context(group)
    for name, (_, short) in listed.items():
        command = group.get_command(context, name)
        assert command is not None
        assert (command.help or "").split("\n\n")[0].replace("\n", " ") == short
    assert group.get_command(context, "nonsense") is None
    for path in {path[:-1] for path, _ in every_command(group)}:
        result = CliRunner().invoke(group, [*path, "--help"], terminal_width=80)
        assert "..." not in result.stdout.partition("Commands:")[2], path


SECRETS = ("--key", "--operator-key", "--metrics-key", "--secret", "--database-url", "--rpc-url")


# --- Accounts


def test_objects_are_found_by_their_names_and_an_ambiguous_or_unknown_one_is_refused(
    commands: CommandLine,
) -> None:
    made = commands.json("accounts", "create", "Research bot")
    for name in ("Research bot", "@research-bot", made["account_id"]):
        assert commands.json("accounts", "get", name)["account_id"] == made["account_id"]
    with Receiver() as receiver:
        events = ("--events", "transfer.*,session.opened", "--account", "Research bot")
        secret = commands.shown("webhooks", "create", receiver.url, *events, "-q")
        assert secret.startswith("whsec_")
        (webhook,) = commands.items("webhooks", "list")
        types = ["transfer.initiated", "transfer.settled", "transfer.rejected", "session.opened"]
        assert (webhook["events"], webhook["account_ids"]) == (types, [made["account_id"]])
        assert commands.json("webhooks", "rotate", receiver.url, "--overlap", "0")["secret"] != secret.strip()
        assert commands.json("webhooks", "delete", receiver.url)["webhook_id"] == webhook["webhook_id"]
    assert "No webhooks. Create one with agentpay webhooks create URL." in commands.shown("webhooks", "list")

    first, second = (commands.json("accounts", "create", "Twin")["account_id"] for _ in range(2))
    said = commands.refused("accounts", "get", "Twin")
    assert not [each for each in ("2 matches for account named 'Twin'", first, second) if each not in said]
    said = commands.refused("accounts", "get", "Nobody")
    assert said == "Error: there is no account named 'Nobody'. List them with agentpay accounts list.\n"
    failure = json.loads(commands.run("accounts", "get", "Nobody", "--json").stderr)
    assert failure["error"] == "not_found"


def test_what_a_key_did_is_listed_by_its_name_also_after_it_is_revoked(commands: CommandLine) -> None:
    payer, shop = commands.funded().account_id, _shop(commands.client)
    keys = [commands.client.agent_keys.create(payer, name=name) for name in ("laptop", "server")]
    for key, amount in zip([*keys, keys[0]], ("1", "2", "3"), strict=True):
        agent = commands.server.client(api_key=key.key)
        agent.transfers.create(from_=payer, to=shop, amount=amount, memo=f"Order {amount}")
    commands.run("keys", "revoke", "laptop")
    assert "there is no agent key named 'laptop'" in commands.refused("keys", "revoke", "laptop")

    def amounts(*options: str) -> list[str]:
        return [row.split()[1] for row in commands.shown("transfers", "list", *options).splitlines()[1:]]

    assert amounts("--by", "laptop") == ["3.00", "1.00"]
    assert amounts("--by", keys[1].key_id) == ["2.00"]
    assert amounts("--memo", "order", "--min-amount", "2", "--sort", "amount") == ["3.00", "2.00"]
    entries = commands.items("audit", "list", "--by", "laptop")
    assert [(each["action"], each["key_name"]) for each in entries] == [("transfers.create", "laptop")] * 2
    revocations = [each["subject"] for each in commands.items("audit", "list", "--by", "operator")]
    assert keys[0].key_id in revocations


def test_a_list_names_its_accounts_with_one_request_however_many_others_there_are(
    commands: CommandLine,
) -> None:
    payer = commands.funded(name="Payer").account_id
    twins = [commands.client.accounts.create(name="Twin").account_id for _ in range(2)]
    for payee in (*twins, _shop(commands.client)):
        commands.client.transfers.create(from_=payer, to=payee, amount=1)
    for number in range(120):
        commands.client.accounts.create(name=f"Newer {number}")
    before = len(commands.items("requests", "list", "--all"))
    rows = commands.shown("transfers", "list").splitlines()[1:]
    assert [row.split()[0] for row in rows] == ["Payer"] * 3
    # A name that is not unique there is no name.
    assert [row.split()[3] for row in rows] == ["Shop", *reversed(twins)]
    after = commands.items("requests", "list", "--all")
    routes = [each["route"] for each in after[: len(after) - before]]
    assert routes.count("/ext/v1/console/accounts") == 2


def test_accounts_are_sorted_by_the_service(commands: CommandLine) -> None:
    for name, amount in (("b", "1"), ("C", "3"), ("a", "2")):
        account_id = commands.funded("5", name=name).account_id
        commands.client.transfers.create(from_=account_id, to=_shop(commands.client), amount=amount)
        commands.client.policies.update(account_id, max_daily_spend=amount)
    for sort, expected in (
        ("name", ["a", "b", "C", "Shop", "Shop", "Shop"]),
        ("spent", ["C", "a", "b", "Shop", "Shop", "Shop"]),
        ("limit", ["Shop", "Shop", "Shop", "C", "a", "b"]),
        ("balance", ["b", "a", "Shop", "Shop", "C", "Shop"]),
    ):
        assert [each["name"] for each in commands.items("accounts", "list", "--sort", sort)] == expected
    heading, first, *_ = commands.shown("accounts", "list", "--sort", "spent").splitlines()
    assert heading.split()[:3] == ["name", "balance", "spent"]
    assert first.split()[:3] == ["C", "2.00", "3.00"]
    assert "cannot be combined with sort" in commands.refused(
        "accounts", "list", "--sort", "spent", "--status", "active"
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("2026-01-31T12:00:00Z", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("2026-01-31T12:00:00+02:00", datetime(2026, 1, 31, 10, tzinfo=UTC)),
        ("2026-01-31", datetime(2026, 1, 31, tzinfo=UTC)),
        ("now", timedelta(0)),
        ("30m", timedelta(minutes=30)),
        ("24h", timedelta(hours=24)),
        ("7d", timedelta(days=7)),
        ("2w", timedelta(weeks=2)),
        *(
            (bad, None)
            for bad in ("24", "24x", "h", "-1h", "tomorrow", "2026-02-30", "2026-1-1", "999999999w")
        ),
        *((bad, None) for bad in ("2026-01-31T12:00:00", "", "٣h")),
    ],
)
def test_a_time_is_a_timestamp_a_day_or_how_long_ago(
    given: str, expected: datetime | timedelta | None
) -> None:
    if expected is None:
        with pytest.raises(click.BadParameter, match="is not a time such as 24h, yesterday, 2026-01-31 or"):
            MOMENT.convert(given, None, None)
    elif isinstance(expected, datetime):
        assert MOMENT.convert(given, None, None) == expected
    else:
        before = datetime.now(UTC)
        assert before <= MOMENT.convert(given, None, None) + expected <= datetime.now(UTC)


def test_a_day_begins_in_utc() -> None:
    today, yesterday = (MOMENT.convert(word, None, None) for word in ("today", "yesterday"))
    assert (today - yesterday, today.time(), today.tzinfo) == (timedelta(days=1), time.min, UTC)
    assert today <= datetime.now(UTC)


def test_a_webhooks_url_is_never_taken_for_that_of_the_service(commands: CommandLine) -> None:
    with Receiver() as receiver:
        for arguments in (
            ("webhooks", "create", "--url", receiver.url),
            ("webhooks", "create", receiver.url, "--url", receiver.url),
            ("webhooks", "update", "wh_1", "--url", receiver.url),
            ("webhooks", "list", "--url", receiver.url),
            ("listen", "--url", receiver.url),
        ):
            result = commands.run(*arguments)
            assert (result.exit_code, result.stdout) == (2, "")
            assert "--url is the URL of the service, and needs --key here" in result.stderr
        assert receiver.posts == []
    service = ("--url", commands.environment["AGENTPAY_BASE_URL"], "--key", commands.server.operator_key)
    commands.environment["AGENTPAY_BASE_URL"] = "http://127.0.0.1:9"
    assert commands.items("webhooks", "list", *service) == []


@pytest.mark.parametrize(
    "typed", ["webhooks update --url {hook}", "webhooks delete --url {hook}", "listen --url {hook} --account"]
)
def test_completing_after_a_webhooks_url_asks_the_service_only(
    commands: CommandLine, monkeypatch: pytest.MonkeyPatch, typed: str
) -> None:
    for name, value in commands.environment.items():
        monkeypatch.setenv(name, value)
    commands.client.webhooks.create("http://127.0.0.1:9/x", events=["transfer.settled"])
    commands.funded(name="Buyer")
    with socket.create_server(("127.0.0.1", 0)) as hook:
        hook.setblocking(False)
        words = typed.format(hook=f"http://127.0.0.1:{hook.getsockname()[1]}/hook").split()
        found = BashComplete(main, {}, "agentpay", "_AGENTPAY_COMPLETE").get_completions(words, "")
        assert {"http://127.0.0.1:9/x", "Buyer"} & {each.value for each in found}
        with pytest.raises(BlockingIOError):
            hook.accept()


def test_sorted_approvals_are_all_within_the_period(commands: CommandLine) -> None:
    payer = commands.funded().account_id
    pending(commands.client, payer)
    commands.server.sandbox.clock.advance(hours=5)
    newer = pending(commands.client, payer)
    since = (commands.server.sandbox.clock.now() - timedelta(hours=1)).isoformat()
    listed = commands.items("approvals", "list", "--sort", "expires", "--since", since)
    assert [each["transfer_id"] for each in listed] == [newer]


def test_a_budget_is_shown_as_a_sentence_and_figures(commands: CommandLine) -> None:
    account_id = commands.funded("7", name="Bot").account_id
    commands.json("accounts", "policy", "Bot", "--max-single-transfer", "2.5")
    assert commands.shown("budget", "Bot").startswith("Bot may spend now: 2.50 USDC in one transfer\n")
    assert commands.json("budget", account_id)["available_usdc"] == "7.000000"
    commands.environment["AGENTPAY_API_KEY"] = commands.server.agent_keys.create(account_id).key
    assert commands.json("budget")["account_id"] == account_id
    said = commands.refused("transfers", "create", "--to", "Shop", "--amount", "1")
    assert "an agent key cannot look up the account named 'Shop'. Use an operator key, or pass" in said


def test_funding_without_a_sandbox_shows_the_address_for_usdc(
    commands: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = commands.funded(name="Bot")
    real = AgentPay.request

    def without_sandbox(self: AgentPay, method: str, path: str, **others: object) -> object:
        return real(self, method, path.replace("/ext/v1/sandbox", "/no-such-extension"), **others)  # type: ignore[arg-type]

    monkeypatch.setattr(AgentPay, "request", without_sandbox)
    said = commands.refused("accounts", "fund", "Bot", "1")
    assert f"no sandbox. Send USDC to the token account {account.usdc_token_account}" in said


# --- Transfers and sessions


def test_a_transfer_is_checked_made_once_and_listed(commands: CommandLine) -> None:
    commands.funded(name="Payer")
    commands.json("accounts", "create", "Shop")
    ends = ("--from", "Payer", "--to", "Shop", "--amount", "1.5")
    assert commands.json("transfers", "check", *ends)["decision"] == "settle"
    pay = ("transfers", "create", *ends, "--memo", "rent", "--idempotency-key", "k1")
    made = commands.json(*pay)
    assert commands.json(*pay) == made
    (listed,) = commands.items("transfers", "list", "--account", "Payer", "--status", "settled")
    assert listed["transfer_id"] == made["transfer_id"]
    assert commands.json("transfers", "get", made["transfer_id"])["memo"] == "rent"
    shown = commands.shown("transfers", "list").splitlines()
    assert re.fullmatch(rf"Payer +1\.50 +settled +Shop +\S+ +rent +{made['transfer_id']}", shown[1]), shown
    (event,) = commands.items("events", "list", "--type", "transfer.settled", "--account", "Payer")
    shown = commands.shown("events", "list", "--type", "transfer.settled").splitlines()
    assert re.search(rf"transfer\.settled +Payer +1\.50 +{event['id']}", shown[1]), shown


def test_a_refusal_that_is_repeated_says_when_it_was_decided(commands: CommandLine) -> None:
    commands.client.policies.update(commands.funded(name="Payer").account_id, max_single_transfer="1")
    commands.json("accounts", "create", "Shop")
    ends = ("--from", "Payer", "--to", "Shop", "--amount", "2")
    pay = ("transfers", "create", *ends, "--idempotency-key", "k1")
    first, decided_at = (
        commands.refused(*pay, exit_code=5),
        format_timestamp(commands.server.sandbox.clock.now()),
    )
    assert "decided at" not in first
    commands.server.sandbox.clock.advance(hours=2)
    words = f"That was decided at {decided_at}, and is repeated for its idempotency key. No money moved."
    assert words in commands.refused(*pay, exit_code=5)
    assert json.loads(commands.run(*pay, "--json").stderr)["decided_at"] == decided_at


def test_a_transfer_with_unknown_outcome_exits_with_6_and_explains_how_to_resume(
    commands: CommandLine,
) -> None:
    commands.funded(name="Payer")
    commands.json("accounts", "create", "Shop")
    commands.server.sandbox.set_fault("http:POST /v1/transfers", effect="reply_lost")
    ends = ("--from", "Payer", "--to", "Shop", "--amount", "1.5")
    result = commands.run("transfers", "create", *ends, "--json")
    commands.server.sandbox.clear_faults()
    assert (result.exit_code, result.stdout) == (6, "")
    failure = json.loads(result.stderr)
    assert failure["error"] == "outcome_unknown"
    commands.json("transfers", "create", *ends, "--idempotency-key", failure["idempotency_key"])
    assert len(commands.items("transfers", "list")) == 1


def test_an_agents_key_pays_from_its_account(commands: CommandLine) -> None:
    account_id = commands.funded(name="Payer").account_id
    payee = commands.json("accounts", "create", "Shop")["account_id"]
    assert "an operator key has many accounts" in commands.refused(
        "transfers", "create", "--to", payee, "--amount", "1"
    )
    commands.environment["AGENTPAY_API_KEY"] = commands.shown(
        "keys", "create", "--account", "Payer", "-q"
    ).strip()
    assert commands.json("whoami")["account_id"] == account_id
    assert commands.json("transfers", "create", "--to", payee, "--amount", "1")["from"] == account_id
    # It may not list accounts, so identifiers are shown instead of names.
    assert account_id in commands.shown("transfers", "list")


# --- Forms


def test_identifiers_are_whole_on_one_line_at_every_width(
    commands: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    account_id = commands.funded(
        name="A research bot with a very long name indeed, longer than most"
    ).account_id
    inbox = commands.server.webhook_inbox()
    commands.json("keys", "create", "--account", account_id, "--name", "a name that is rather long for a key")
    commands.json("sessions", "open", "--from", account_id, "--to", _shop(commands.client), "--cap", "1")
    pending(commands.client, account_id, memo="a memo that is far too long for a table of transfers")
    commands.server.sandbox.clock.advance(0)
    assert inbox.webhook_id

    real = Output.__init__
    widths = [80]

    def on_a_narrow_terminal(self: Output, *, is_json: bool, is_quiet: bool = False) -> None:
        real(self, is_json=is_json, is_quiet=is_quiet)
        self._out.width = widths[-1]

    monkeypatch.setattr(Output, "__init__", on_a_narrow_terminal)
    lists = ("accounts", "transfers", "sessions", "approvals", "webhooks", "events", "deliveries", "keys")
    for name in lists:
        count = len(commands.items(name, "list"))
        assert count, name
        for width in (80, 100, 200):
            widths.append(width)
            heading, *rows = commands.shown(name, "list").splitlines()
            assert len(rows) == count
            for row in rows:
                assert len(row) <= width, (name, row)
                assert ID.search(row), (name, row)
                # Nothing is a part of an identifier: what is shown of one is all of it.
                assert not re.search(r"\b(?:acct|txn|sess|wh|evt|dlv|key)_[0-9a-z]{0,25}\b", row), (name, row)
            assert len(heading) <= width
            wide = commands.shown(name, "list", "--wide")
            assert "…" not in wide
        shortest = commands.shown(name, "list", "--quiet").splitlines()
        assert [bool(ID.fullmatch(line)) for line in shortest] == [True] * count


TRANSFER_ID = "txn_01m81gj57139m4r30pnzgsdzkf"
ADDRESS = "9hbi8MGyS4FvbPawwshQMzj3mZ698aj6gEYduAEqXhwt"
NAMES = {"from": "Travel desk", "amount": "30.34", "to": "Airline", "memo": "flight AP642 to Lisbon"}


@pytest.mark.parametrize(
    ("item", "width", "is_wide", "shown"),
    [
        (NAMES, 90, False, {**NAMES}),
        (NAMES, 80, False, {**NAMES, "memo": "flight AP642 to L…"}),
        (NAMES, 70, False, {name: NAMES[name] for name in ("from", "amount", "to")}),
        (NAMES, 58, False, {name: NAMES[name] for name in ("from", "amount")}),
        # A column that fits is shown, though a better one does not.
        ({"from": "Payer", "to": "x" * 60, "memo": "3s ago"}, 60, False, {"from": "Payer", "memo": "3s ago"}),
        # Of an address, the ends.
        ({"to": ADDRESS}, 60, False, {"to": "9hbi…Xhwt"}),
        ({"to": ADDRESS}, 60, True, {"to": ADDRESS}),
        ({"to": ADDRESS}, 80, False, {"to": ADDRESS}),
    ],
)
def test_a_narrow_list_gives_up_optional_columns_before_it_cuts_names(
    item: dict[str, str], width: int, is_wide: bool, shown: dict[str, str]
) -> None:
    optional = {"to": Show.IF_IT_FITS, "memo": Show.IF_IT_FITS}
    columns = [
        Column(name, itemgetter(name), is_text=name in ("from", "memo"), show=optional.get(name, Show.ALWAYS))
        for name in (*item, "transfer_id")
    ]
    whole = {**item, "transfer_id": TRANSFER_ID}
    printed = lines([whole], columns, width=width, is_wide=is_wide, now=datetime.now(UTC))
    heading, row = (line.plain for line in printed)
    assert heading.split() == [*shown, "transfer_id"]
    assert re.split(r" {2,}", row) == [*shown.values(), TRANSFER_ID]
    assert is_wide or len(row) <= width


def test_an_object_is_shown_with_its_identifier_first_which_is_all_that_quiet_prints(
    commands: CommandLine,
) -> None:
    account_id = commands.funded(name="Payer").account_id
    fund, policy = ("accounts", "fund", "Payer", "5"), ("accounts", "policy", "Payer")
    assert commands.shown(*fund).splitlines()[1].split() == ["account_id", account_id]
    for command in (fund, policy, (*policy, "--pause")):
        assert commands.shown(*command, "--quiet") == f"{account_id}\n"
    shown = commands.shown("webhooks", "create", "http://127.0.0.1:9/hooks").splitlines()
    assert shown[1].startswith("webhook_id")
    assert [line.split()[1] for line in shown if line.startswith("account_ids")] == ["all"]


def test_an_outage_of_the_chain_stops_neither_a_pause_nor_a_list(commands: CommandLine) -> None:
    account_id = commands.funded(name="Buyer").account_id
    commands.server.sandbox.set_fault("chain_down")
    for read in (commands.client.accounts.get, commands.client.accounts.balance):
        with pytest.raises(ChainUnavailableError):
            read(account_id, max_retries=0)
    (listed,) = commands.items("accounts", "list")
    assert (listed["account_id"], listed["balance_usdc"], listed["status"]) == (account_id, None, "active")
    assert "Buyer" in commands.shown("search", "buyer")
    assert commands.json("accounts", "policy", "@buyer", "--pause")["paused"] is True
    assert commands.json("accounts", "get", "Buyer")["status"] == "paused"
    assert not commands.client.console.summary().is_chain_reachable


def test_a_suspended_account_says_why_and_is_unblocked(commands: CommandLine) -> None:
    payer, payee = commands.funded("10", name="Buyer"), commands.funded("1", name="Shop")
    signature = money.suspend(commands.server, payer, payee, 2_000_000)
    assert "suspended" in commands.shown("accounts", "list")
    found = commands.json("accounts", "get", "Buyer")
    assert found["signing_stopped_at"] is not None
    assert found["suspension"] == {
        "cause": "unknown_debit",
        "subject": payer.account_id,
        "tx_signature": signature,
        "chain_explorer_url": found["suspension"]["chain_explorer_url"],
    }
    unblocked = commands.json("accounts", "unblock", "Buyer")
    assert (unblocked["signing_stopped_at"], unblocked["suspension"]) == (None, None)


def test_a_list_as_csv_is_whole_and_within_its_period(commands: CommandLine) -> None:
    payer, payee = commands.funded("10", name="=Buyer"), commands.client.accounts.create(name="Shop")
    began = commands.server.sandbox.clock.now()
    for number in range(3):
        commands.server.sandbox.clock.advance(60)
        commands.client.transfers.create(from_=payer.account_id, to=payee.account_id, amount=number + 1)
    first, last = (format_timestamp(began + timedelta(minutes=minutes)) for minutes in (1, 3))

    def amounts(*command: str) -> list[str]:
        rows = csv.DictReader(io.StringIO(commands.shown(*command, "--csv")))
        return [row.get("amount_usdc") or row["name"] for row in rows]

    for listed in (("transfers", "list"), ("accounts", "history", "=Buyer")):
        assert amounts(*listed, "--since", first, "--until", last) == ["3.000000", "2.000000"]
        assert amounts(*listed, "--until", first)[0] == "1.000000"
        assert amounts(*listed, "--limit", "1") == ["3.000000"]
    # As a server of the version before wrote it during an upgrade.
    money.change(commands.server, "entries", {"operator_id": ""}, amount=3_000_000)
    assert amounts("accounts", "history", "=Buyer", "--since", first) == ["3.000000", "2.000000"]
    assert amounts("accounts", "list", "--until", first) == ["Shop", "'=Buyer"]
    assert amounts("accounts", "list", "--since", first) == []
    assert commands.unwritten("transfers", "list", "--csv")[0] == 3
    assert commands.run("transfers", "list", "--csv", "--json").exit_code == 2


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


def test_a_list_is_followed_as_it_changes_and_past_an_outage(
    commands: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = commands.client.accounts.create(name="First")
    looks = 0

    def sleep(_: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 2:
            commands.client.policies.update(first.account_id, paused=True)
            commands.server.sandbox.set_fault("http:GET /ext/v1/console/accounts", effect="internal_error")
        if looks == 3:
            commands.server.sandbox.clear_faults()
            commands.client.accounts.create(name="Second")
        if looks == 5:
            raise KeyboardInterrupt

    monkeypatch.setattr("agentpay.cli.listing.time", SimpleNamespace(sleep=sleep))
    result = commands.run("accounts", "list", "--watch", "--json")
    assert result.exit_code == 0
    assert "Cannot read the list, retrying" in result.stderr
    shown = [json.loads(line) for line in result.stdout.splitlines()]
    # What is new is printed, and what has changed; both in the order of the list.
    assert [(each["name"], each["status"]) for each in shown] == [
        ("First", "active"),
        ("First", "paused"),
        ("Second", "active"),
    ]
