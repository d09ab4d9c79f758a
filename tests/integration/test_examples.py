"""The examples that people copy run, as they would run them."""

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_quickstart_shows_the_whole_way_of_a_payment(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "quickstart.py"), run_name="__main__")
    shown = capsys.readouterr().out
    assert shown.count("settled") == 3
    assert "same transfer: True" in shown
    assert "max_single_transfer is 25.000000" in shown
    assert "max_daily_spend is 40.000000" in shown
    assert "balance on chain: 57.500000 USDC" in shown
