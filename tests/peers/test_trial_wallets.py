"""`crash-test -- COMMAND` with payers that have a wallet of their own, each in its own environment.

They sign anew whenever they are asked again, so each is a payer with a new key on each retry: the trial must
find an order that was paid twice, within the 60 seconds in which it gives orders.
"""

import json
from pathlib import Path

import environments
import pytest
import validators
from click.testing import CliRunner

import agentpay_lab
from agentpay_lab.cli import main

WALLETS = Path(agentpay_lab.__file__).parent / "crash_test" / "adapters" / "wallets"
PACKAGES = {
    "x402_python.py": ("x402[svm,httpx]==2.25.0",),
    "x402_fetch.mjs": (
        "@x402/fetch@2.27.0",
        "@x402/core@2.27.0",
        "@x402/svm@2.27.0",
        "@solana/kit@5.5.1",
    ),
    "pympp_client.py": ("pympp==0.16.0", "solders==0.29.0"),
}


@pytest.mark.peers
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", PACKAGES)
def test_a_wallet_that_pays_again_is_found(name: str) -> None:
    validators.embedded_only("it starts a server and a separate chain")
    program = WALLETS / name
    if program.suffix == ".py":
        command = [str(environments.python(*PACKAGES[name])), str(program)]
    else:
        directory = environments.node(*PACKAGES[name])
        command = ["node", str(environments.placed(directory, name, program.read_text("utf-8")))]
    protocol = "mpp" if "mpp" in name else "x402_v2"
    options = ["--json", "--for", "60", "--seed", "2", "--protocol", protocol]
    result = CliRunner().invoke(main, ["crash-test", *options, "--", *command])
    assert "Traceback" not in result.output
    report = json.loads(result.stdout)["report"]
    wrong = next(each for each in report["orders"] if each["order"] == report["first_wrong"])
    assert (result.exit_code, wrong["landed"] > 1) == (1, True)
