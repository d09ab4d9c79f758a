"""`crash-test -- COMMAND`: a payer in any language is tried, and counted on the chain."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import validators
from attrs import evolve
from click.testing import CliRunner
from solders.hash import Hash
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.message import MessageV0
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.transaction import VersionedTransaction

from agentpay_lab.cli import main
from agentpay_lab.crash_test import payer as payers
from agentpay_lab.crash_test import trial
from agentpay_lab.crash_test.node import LandedChannel, LandedPayments, channel_steps
from agentpay_lab.crash_test.orders import (
    PRICE_USDC,
    Bought,
    Kill,
    TimelineEntry,
    TrialOrder,
    TrialProtocol,
    TrialReport,
    collapsed,
)
from agentpay_lab.crash_test.pages import lines_of_trial, page_of, verdict_of
from agentpay_lab.crash_test.payer import Payer, PayerError
from agentpay_lab.crash_test.trial import stray_micro
from agentpay_server.chain.channels import codecs
from agentpay_server.chain.channels.codecs import OnchainTerms, Share, Voucher
from agentpay_server.chain.instructions import USDC_MINTS
from agentpay_server.paywall import Mode

ADAPTERS = Path(trial.__file__).with_name("adapters")

# A new key on each retry: what the line of an adapter becomes.
PLANTED = {
    "payer.py": ('{"payment_key": order}', '{"payment_key": f"{order}-{os.urandom(4).hex()}"}'),
    "payer.sh": ('--arg key "$1"', '--arg key "$1-$(date +%N)"'),
    "payer.mjs": ("idempotency_key: order", "idempotency_key: `${order}-${Math.random()}`"),
}


def run(*arguments: str) -> tuple[int, dict[str, Any]]:
    validators.embedded_only("it starts a server and a separate chain")
    result = CliRunner().invoke(main, ["crash-test", "--json", *arguments])
    assert "Traceback" not in result.output
    return result.exit_code, json.loads(result.stdout)


def command_of(program: Path) -> list[str]:
    """Return the command that runs a payer, or skip the test."""
    if program.suffix == ".py":
        return [sys.executable, "-P", str(program)]
    needed = ["curl", "jq"] if program.suffix == ".sh" else ["node"]
    for each in needed:
        if shutil.which(each) is None:
            pytest.skip(f"needs {each}")
    return ["sh" if program.suffix == ".sh" else "node", str(program)]


EXACT = ("x402_v2", "mpp")
TRIALS = [
    *((name, EXACT) for name in PLANTED),
    ("payer.py", ("session",)),
    ("payer.sh", ("session",)),
    ("payer.mjs", ("session", "upto")),
]


@pytest.mark.whole
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("name", "protocols"), TRIALS)
def test_a_new_key_on_each_retry_is_found_and_the_adapter_passes(
    tmp_path: Path, name: str, protocols: tuple[str, ...]
) -> None:
    program, page = tmp_path / name, tmp_path / "report.html"
    text = (ADAPTERS / name).read_text("utf-8")
    line, planted = PLANTED[name]
    assert line in text
    options = ["--for", "300", "--seed", "2", *(f"--protocol={each}" for each in protocols)]
    program.write_text(text.replace(line, planted), "utf-8")
    code, told = run(*options, "--html", str(page), "--", *command_of(program))
    report = told["report"]
    assert (code, told["has_passed"], report["protocols"]) == (1, False, list(protocols))
    wrong = next(each for each in report["orders"] if each["order"] == report["first_wrong"])
    assert wrong["landed"] > 1 or wrong["paid_usdc"] > float(PRICE_USDC)
    assert wrong["order"] in page.read_text("utf-8")
    assert f"<td>{wrong['protocol']}</td>" in page.read_text("utf-8")
    if protocols == EXACT and report["shortest"] is not None:
        moments = [moment["what"] for moment in report["shortest"]["timeline"]]
        keys = [what.partition(", key ")[2] for what in moments if "signs a payment" in what]
        assert len(set(keys)) == len(keys) > 1, moments

    program.write_text(text, "utf-8")
    # One of them long enough to prove something.
    orders = "24" if (name, protocols) == ("payer.py", EXACT) else "6"
    code, told = run(*options, "--purchases", orders, "--", *command_of(program))
    report = told["report"]
    assert (report["first_wrong"], report["stray_usdc"]) == (None, 0), report
    paid = sum(each["landed"] > 0 for each in report["orders"])
    assert (code, told["has_passed"]) == ((0, True) if orders == "24" else (1, False))
    assert told["verdict"].startswith("passed" if orders == "24" else f"NOT PASSED: {paid} orders were paid")


def test_a_payer_that_pays_nothing_proves_nothing(tmp_path: Path) -> None:
    program = tmp_path / "idle.py"
    program.write_text(
        'import json, sys\nfor line in sys.stdin:\n    print(json.dumps({"order": json.loads(line)["order"], '
        '"result": "refused"}), flush=True)\n'
    )
    code, told = run("--for", "2", "--purchases", "2", "--", sys.executable, str(program))
    assert (code, told["has_passed"], told["report"]["first_wrong"]) == (1, False, None)


def test_a_trial_ends_with_its_time_however_silent_the_payer_is() -> None:
    code, told = run("--for", "1", "--", sys.executable, "-c", "import sys; sys.stdin.read()")
    (order,) = told["report"]["orders"]
    assert (code, order["asked"]) == (1, 1)
    # Half a minute without a time.
    assert order["timeline"][-1]["seconds"] < 25


def test_a_payer_that_does_not_start_is_an_error() -> None:
    validators.embedded_only("it starts a server and a separate chain")
    result = CliRunner().invoke(main, ["crash-test", "--", "/does/not/exist"])
    assert result.exit_code == 1
    assert "the payer cannot be started" in result.output


ORDER = {"order": "order-1", "url": "http://127.0.0.1:1/"}
BAD = {
    "exits at once": ("", "ends with exit code 0 before it buys$"),
    "cannot start": ("import sys; sys.exit('no file\\x1b[2J')", r"exit code 1 .*:\nno file\\x1b\[2J$"),
    "writes many lines": (
        "import sys; sys.exit('\\n'.join(f'line {n}' for n in range(99)))",
        r"exit code 1 before it buys:\nline 79\n(line \d+\n){18}line 98$",
    ),
    "writes errors without end": ("import os\nfor _ in range(99): os.write(2, b'x' * 10**6)", "exit code 0"),
}


@pytest.fixture
def payer_of(tmp_path: Path) -> Iterator[Callable[[str], Payer]]:
    disk = tmp_path / "a payer's disk"
    disk.mkdir()
    started: list[Payer] = []

    def of(program: str) -> Payer:
        path = disk / "payer with spaces.py"
        path.write_text(program, "utf-8")
        environment = {**os.environ, payers.DIRECTORY: str(disk)}
        started.append(Payer([sys.executable, "-S", str(path)], environment, disk))
        return started[-1]

    yield of
    for payer in started:
        payer.kill()


def awaited(look: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 120
    while not (found := look()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


def ask_until_it_ends(payer: Payer) -> None:
    for _ in range(payers.MAX_ENDS):
        payer.ask(ORDER)
        awaited(lambda: payer.has_ended)
        payer.end()


def ask_for_ever(payer: Payer) -> None:
    while True:
        payer.ask(ORDER)


@pytest.mark.parametrize("how", BAD)
def test_a_payer_that_ends_at_once_is_reported_with_its_last_lines(
    payer_of: Callable[[str], Payer], how: str
) -> None:
    program, words = BAD[how]
    payer = payer_of(program)
    with pytest.raises(PayerError) as refused:
        ask_until_it_ends(payer)
    assert re.search(words, str(refused.value))
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize(
    ("program", "how"), [("", "ends with exit code 0"), ("time.sleep(600)", "closes its standard input")]
)
def test_a_payer_that_reads_no_orders_is_reported(
    payer_of: Callable[[str], Payer], program: str, how: str
) -> None:
    payer = payer_of(f"import os, time; os.close(0); {program}")
    with pytest.raises(PayerError, match=f"{how} before it buys"):
        ask_for_ever(payer)


def test_what_a_payer_writes_beside_its_results_is_ignored(payer_of: Callable[[str], Payer]) -> None:
    payer = payer_of(
        "import sys\nsys.stdin.readline()\nout = sys.stdout.buffer\n"
        "for junk in (b'\\xff\\xfe', b'[' * 60_000, b'x' * 10**6, b'{\"order\": 5}', b'null'):\n"
        "    out.write(junk + b'\\n')\n"
        'out.write(b\'{"order": "order-1", "result": "served"}\\n\')\nout.flush()\nsys.stdin.readline()'
    )
    payer.ask(ORDER)
    assert awaited(lambda: payer.result("order-1")) == "served"


def test_output_without_end_takes_no_memory_and_no_time(payer_of: Callable[[str], Payer]) -> None:
    payer = payer_of('import sys\nwhile True: sys.stdout.write(\'{"order": "another"}\\n\' * 1000)')
    payer.ask(ORDER)
    awaited(lambda: payer._lines.qsize() == payers._LINES)
    for _ in range(3):
        assert payer.result("order-1") is None
        assert payer._lines.qsize() <= payers._LINES


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
def test_children_of_a_payer_do_not_outlive_it(payer_of: Callable[[str], Payer], tmp_path: Path) -> None:
    written = tmp_path / "child"
    payer = payer_of(
        "import pathlib, subprocess, sys\n"
        "child = subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
        f"pathlib.Path({str(written)!r}).write_text(f'{{child.pid}}.')\nsys.stdin.read()"
    )
    payer.ask(ORDER)
    awaited(lambda: written.exists() and written.read_text().endswith("."))
    status = Path("/proc", written.read_text()[:-1], "status")
    payer.kill()
    # A zombie waits only for its parent.
    awaited(lambda: not status.exists() or "State:\tZ" in status.read_text())


def test_protocols_are_chosen_only_for_a_payer_of_yours() -> None:
    result = CliRunner().invoke(main, ["crash-test", "--protocol", "session"])
    assert result.exit_code == 2
    assert "--protocol needs COMMAND" in result.output


def test_the_page_needs_a_directory() -> None:
    result = CliRunner().invoke(main, ["crash-test", "--html", "/does/not/exist/x.html", "--", "true"])
    assert result.exit_code == 2
    assert "is not a directory" in result.output


@pytest.mark.parametrize("language", ["python", "shell", "typescript", "x402-python", "x402-fetch", "pympp"])
def test_an_adapter_is_printed_to_start_from(language: str) -> None:
    result = CliRunner().invoke(main, ["crash-test", "--adapter", language])
    assert result.exit_code == 0
    assert result.stdout in {path.read_text("utf-8") for path in ADAPTERS.rglob("*.*")}


def test_the_adapter_for_node_runs_with_the_command_that_it_names(tmp_path: Path) -> None:
    printed = CliRunner().invoke(main, ["crash-test", "--adapter", "typescript"]).stdout
    assert "payment service: node payer.mjs\n" in printed
    program = tmp_path / "payer.mjs"
    program.write_text(printed, "utf-8")
    order = json.dumps({"order": "order-1", "url": "http://127.0.0.1:1/"})
    done = subprocess.run(command_of(program), input=order, text=True, capture_output=True, check=False)
    assert json.loads(done.stdout) == {"order": "order-1", "result": "failed"}, done.stderr


# --- The report

PAID_ONCE = Bought(
    order="order-0",
    seller=Mode.HONEST,
    protocol=TrialProtocol.X402_V2,
    story="Once.",
    asked=1,
    result="served",
    landed=1,
    paid_usdc=Decimal("0.01"),
    timeline=(),
)
PAID_TWICE = evolve(
    PAID_ONCE,
    order="order-<1>",
    landed=2,
    paid_usdc=Decimal("0.02"),
    timeline=(TimelineEntry(seconds=Decimal("0.500"), what="a payment lands"),),
)
CLEAN = TrialReport(
    seed=7,
    protocols=(TrialProtocol.X402_V2,),
    orders=(PAID_ONCE,) * 10,
    kills=1,
    first_wrong=None,
    shortest=None,
    stray_usdc=Decimal(0),
    seconds=3,
)


@pytest.mark.parametrize(
    ("report", "has_passed", "words"),
    [
        (CLEAN, True, "passed (seed 7)"),
        (evolve(CLEAN, orders=()), False, "nothing was paid"),
        (evolve(CLEAN, orders=(PAID_ONCE,) * 9), False, "9 orders were paid, and fewer than 10 prove little"),
        (evolve(CLEAN, stray_usdc=Decimal(1)), False, "1 USDC were paid for no order"),
        (
            evolve(CLEAN, orders=(PAID_ONCE, PAID_TWICE), first_wrong="order-<1>"),
            False,
            "order-<1> was paid 2 times",
        ),
    ],
)
def test_only_a_clean_trial_passes(report: TrialReport, has_passed: bool, words: str) -> None:
    assert report.has_passed is has_passed
    assert words in verdict_of(report)
    assert list(lines_of_trial(report))[-1] == verdict_of(report)


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("abc", ["a", "b", "c"]),
        ("aaabb", ["a (3 times)", "b (2 times)"]),
        ("xabababc", ["x", "a", "b", "the last 2 lines again (2 times)", "c"]),
        ("", []),
    ],
)
def test_what_repeats_in_a_timeline_is_shown_once(words: str, shown: list[str]) -> None:
    timeline = [TimelineEntry(seconds=Decimal(place), what=what) for place, what in enumerate(words)]
    assert [entry.what for entry in collapsed(timeline)] == shown


def test_a_report_shows_the_last_lines_of_a_payer_that_has_ended() -> None:
    lines = list(lines_of_trial(evolve(CLEAN, last_lines=("Traceback", "ValueError: boom"))))
    assert lines[-3:-1] == ["  Traceback", "  ValueError: boom"]


def test_the_page_needs_no_other_file_and_escapes_what_it_shows() -> None:
    report = evolve(CLEAN, orders=(PAID_TWICE,), first_wrong="order-<1>", shortest=PAID_TWICE)
    page = page_of(report)
    assert "order-&lt;1&gt;" in page
    assert "order-<1>" not in page
    assert "0.500 s" in page
    assert "http" not in page
    assert "<script" not in page


def test_a_price_above_the_order_is_wrong_too() -> None:
    assert evolve(PAID_ONCE, paid_usdc=Decimal("0.05")).is_wrong
    assert not PAID_ONCE.is_wrong


def test_an_order_paid_through_channels_says_what_was_settled_from_how_many() -> None:
    bought = evolve(PAID_ONCE, protocol=TrialProtocol.SESSION, paid_usdc=Decimal("0.02"))
    report = evolve(CLEAN, protocols=(TrialProtocol.SESSION,), orders=(bought,), first_wrong="order-0")
    words = "order-0 was paid 0.02 USDC through 1 channel, for a price of 0.01 (seed 7)."
    assert words in verdict_of(report)
    assert "1 orders by session" in next(iter(lines_of_trial(report)))
    assert "<td>session</td>" in page_of(report)
    assert "through 2 channels" in evolve(bought, landed=2).payments


def test_a_channel_for_no_order_counts_with_all_that_is_locked_in_it() -> None:
    ours = LandedChannel(payer="us", recipients=frozenset({"seller"}), deposit_micro=30, settled_micro=10)
    channels = (ours, evolve(ours, recipients=frozenset({"a", "b"})), evolve(ours, payer="another"))
    node = SimpleNamespace(landed=lambda: LandedPayments((), channels))
    world: Any = SimpleNamespace(node=node, own_accounts=frozenset(), own_addresses=frozenset({"us"}))
    assert stray_micro(world, ()) == 60
    assert stray_micro(world, {"seller"}) == 30
    assert stray_micro(world, {"seller", "b"}) == 0


def test_a_channel_is_opened_for_its_recipients_and_paid_by_the_highest_voucher() -> None:
    payer, signer, payee, other = (Keypair() for _ in range(4))
    opening = OnchainTerms(
        payer=payer.pubkey(),
        rent_payer=payee.pubkey(),
        payee=payee.pubkey(),
        mint=Pubkey.from_string(USDC_MINTS["mainnet-beta"]),
        signer=signer.pubkey(),
        salt=1,
        open_slot=5,
        deposit_micro=100_000,
        grace_seconds=900,
        shares=(Share(other.pubkey(), 100),),
    )

    def transaction(*steps: Instruction) -> VersionedTransaction:
        message = MessageV0.try_compile(payee.pubkey(), list(steps), [], Hash.default())
        return VersionedTransaction.populate(message, [Signature.default()] * 2)

    def vouched(cumulative_micro: int) -> VersionedTransaction:
        voucher = Voucher(channel=opening.address, cumulative_micro=cumulative_micro)
        signature = signer.sign_message(voucher.message())
        steps = codecs.close_instructions(
            opening, treasury=codecs.TREASURIES["devnet"], voucher=voucher, signature=signature
        )
        return transaction(*steps)

    unpaid = codecs.close_instructions(
        opening, treasury=codecs.TREASURIES["devnet"], voucher=None, signature=None
    )
    assert list(channel_steps(transaction(codecs.open_channel(opening)))) == [opening]
    assert list(channel_steps(vouched(20_000))) == [Voucher(channel=opening.address, cumulative_micro=20_000)]
    assert list(channel_steps(transaction(*unpaid))) == []

    channel = LandedChannel(
        payer=str(payer.pubkey()), recipients=frozenset({"payee", "other"}), deposit_micro=1
    )
    landed = LandedPayments((), (channel,))
    assert [list(landed.channels_to(each)) for each in ("payee", "other", "stranger")] == [
        [channel],
        [channel],
        [],
    ]


@pytest.mark.parametrize("protocol", TrialProtocol)
def test_simpler_orders_have_less_going_wrong(protocol: TrialProtocol) -> None:
    order = TrialOrder(
        name="x", mode=protocol.modes("lose_reply"), protocol=protocol, kill=Kill.RANDOM, loses_reply=True
    )
    simpler = list(order.simpler())
    assert not any(each.loses_reply for each in simpler)
    assert evolve(order, kill=None, loses_reply=False) in simpler
    assert evolve(order, mode=protocol.modes("honest"), loses_reply=False) in simpler
    assert order not in simpler
    assert {each.kill for each in simpler} <= {None, *protocol.kills}
