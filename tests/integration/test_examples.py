"""The examples that people copy run, as they would run them."""

import html
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.unmeasured

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def test_the_metered_session_shows_warning_refusal_and_settlement(
    capsys: pytest.CaptureFixture[str],
) -> None:
    runpy.run_path(str(EXAMPLES / "metered_session.py"), run_name="__main__")
    shown = capsys.readouterr().out
    assert "call 5: 1.750000 of 2.000000 USDC" in shown
    assert "refused: cap_usdc is 2.000000 USDC, of which 1.750000 USDC is charged" in shown
    assert "settled: 1.750000 paid, 0.250000 returned" in shown
    assert "session.cap_warning: 1.750000 of 2.000000" in shown
    assert shown.count("session.settled: 1.750000 in ") == 1
    assert "Research bot holds 18.250000 USDC" in shown
    assert "Inference provider holds 1.750000 USDC" in shown


def test_the_quickstart_shows_settlement_replay_and_refusals(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "quickstart.py"), run_name="__main__")
    shown = capsys.readouterr().out
    assert shown.count("settled") == 3
    assert "same transfer: True" in shown
    assert "max_single_transfer is 25.000000" in shown
    assert "max_daily_spend is 40.000000" in shown
    assert "balance on chain: 57.500000 USDC" in shown
    picture = html.unescape((ROOT / "docs" / "images" / "quickstart.svg").read_text("utf-8"))
    pictured = picture.replace("\N{NO-BREAK SPACE}", " ")
    for step in (line for line in shown.splitlines() if not line.startswith(" ")):
        assert step in pictured, "the picture is of another quickstart: nox -s picture"


def test_the_approval_flow_is_decided_from_another_process() -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "approval_flow.py")],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,  # For hangs only.
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONIOENCODING": "utf-8"},
    )
    assert (done.returncode, done.stderr) == (0, "")
    shown = done.stdout
    assert "agent: 5 USDC: settled" in shown
    assert "agent: 30 USDC: settled" in shown
    assert "agent: 50 USDC: rejected An operator rejected this transfer, because: “Ask legal first”." in shown
    assert "spent 35.000000, remaining 45.000000 of 80 USDC" in shown


def test_payments_are_resumed_and_never_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "resume_payment.py"), run_name="__main__")
    shown = capsys.readouterr().out
    assert shown.count("unknown") == 2
    for order in ("weather", "traffic", "atlas"):
        assert shown.count(f"{order}: settled as txn_") == 1
    assert [shown.count(f"the shop holds {paid}.000000 USDC") for paid in (25, 50, 75)] == [1, 1, 1]


def test_the_async_agent_stays_within_its_limit(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "async_agent.py"), run_name="__main__")
    shown = capsys.readouterr().out
    assert "6 answered, 6 over the limit" in shown
    assert shown.count(": 1.500000 USDC in ") == 6
    assert "spent 9.000000 of 10 USDC" in shown
