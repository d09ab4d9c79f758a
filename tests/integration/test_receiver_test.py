"""`agentpay-lab receiver-test`: planted faults are named, and receivers without one pass."""

import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from ports import steady_port

from agentpay_lab.cli import main

HERE = Path(__file__).parent
RECEIVERS = HERE.parents[1] / "examples/receivers"

# Each fault, and words of the sentence that names it.
FAULTS = {
    "no deduplication": "It acted 3 times on an event that was delivered three times.",
    "compares parsed JSON": "It acted on the signed JSON in other bytes.",
    "responds before it stores": "It never acted on an event to which it had responded before it was killed.",
    "trusts the order": "It never acted on an event that arrived after a later one.",
    "accepts an old secret for ever": "It acted on the old secret after the overlap.",
    "verifies nothing": "It acted on a signature made with another secret.",
    "accepts what is not signed": "It acted on a delivery without a signature.",
    "ignores the next signature": "It never acted on a rotation to its secret (X-Service-Signature-Next).",
    "fails on malformed signatures": "It did not respond within 10 seconds to a malformed signature",
    "fails on malformed bodies": "It did not respond within 10 seconds to a signed body that is no event",
    "refuses late deliveries": "It never acted on the last retry, 2 h 36 min after the event.",
    "refuses unknown types": "It responded 400 to an event of a newer type",
    "checks, then acts": "times on an event that was delivered 8 times at once.",
}


def report_on(url: str, acted: str, *command: str, kills: int = 0) -> Any:
    """Return the report of a run as JSON."""
    options = ["--acted", acted, "--wait", "3", "--kills", str(kills), "--json"]
    secrets = ["--secret", "whsec_current", "--old-secret", "whsec_rotated_out"]
    result = CliRunner().invoke(main, ["receiver-test", url, *options, *secrets, "--", *command])
    assert result.stdout, result.output
    report = json.loads(result.stdout)
    assert result.exit_code == (0 if report["has_passed"] else 1)
    return report


def report_of(tmp_path: Path, fault: str, kills: int = 0) -> Any:
    port, acted = steady_port(), str(tmp_path / "acted")
    command = (sys.executable, "-S", str(HERE / "planted_receiver.py"), str(port), acted, fault)
    return report_on(f"http://127.0.0.1:{port}/", acted, *command, kills=kills)


def misses(report: Any) -> list[Any]:
    return [miss for result in report["results"] for miss in result["misses"]]


def sentences(report: Any) -> list[str]:
    return [miss["sentence"] for miss in misses(report)]


def test_a_receiver_without_a_fault_passes(tmp_path: Path) -> None:
    report = report_of(tmp_path, "none", kills=4)
    assert sentences(report) == []
    assert report["has_passed"]
    assert len(report["results"]) == 16


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_named_with_the_request_that_shows_it(tmp_path: Path, fault: str) -> None:
    report = report_of(tmp_path, fault, kills=4 if "responds" in fault else 0)
    named = [miss for miss in misses(report) if FAULTS[fault] in miss["sentence"]]
    assert named, sentences(report)
    assert not report["has_passed"]
    assert {"headers", "body"} == named[0]["request"].keys()


def test_the_durable_example_survives_its_kills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECEIVER_DATABASE", str(tmp_path / "receiver.sqlite"))
    port = steady_port()
    command = (sys.executable, str(RECEIVERS / "durable_app.py"))
    monkeypatch.setenv("PORT", str(port))
    base = f"http://127.0.0.1:{port}"
    assert sentences(report_on(f"{base}/webhooks", f"{base}/acted", *command, kills=4)) == []


def test_what_does_not_start_or_listens_already_is_not_tested(tmp_path: Path) -> None:
    """The secret of a process that listens already is another one, so each check would miss."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        for port, command, said in (
            (steady_port(), ("false",), "exit code 1"),
            (listener.getsockname()[1], ("sleep", "60"), "listens there already"),
        ):
            options = [f"http://127.0.0.1:{port}/", "--acted", str(tmp_path / "x")]
            result = CliRunner().invoke(main, ["receiver-test", *options, "--", *command])
            assert (result.exit_code, result.stdout) == (1, "")
            assert said in result.stderr


LEAVES_CHILD = """
import pathlib, subprocess, sys
child = subprocess.Popen([sys.executable, "-S", *sys.argv[2:]], start_new_session=True)
pathlib.Path(sys.argv[1]).write_text(str(child.pid))
child.wait()
"""


@pytest.mark.skipif(os.name != "posix", reason="needs sessions of processes")
def test_a_child_that_survives_its_receiver_is_reported(tmp_path: Path) -> None:
    program, port, acted, child = (
        tmp_path / "parent.py",
        steady_port(),
        tmp_path / "acted",
        tmp_path / "child",
    )
    program.write_text(LEAVES_CHILD, "utf-8")
    receiver = (str(HERE / "planted_receiver.py"), str(port), str(acted), "none")
    command = (sys.executable, "-S", str(program), str(child), *receiver)
    url = f"http://127.0.0.1:{port}/"
    options = ["--acted", str(acted), "--kills", "1"]
    try:
        result = CliRunner().invoke(main, ["receiver-test", url, *options, "--", *command])
        assert result.exit_code == 1
        assert "survives the end of the receiver" in result.stderr
    finally:
        os.kill(int(child.read_text()), signal.SIGKILL)


BAD_RECEIVER = """
import http.server, sys

class Receiver(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        while True:
            self.wfile.write(b"evt_" + b"x" * 10**6)

    do_POST = do_GET

print("noise on standard output", flush=True)
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Receiver).serve_forever()
"""


def test_responses_without_end_are_not_read(tmp_path: Path) -> None:
    program, port = tmp_path / "a receiver.py", steady_port()
    program.write_text(BAD_RECEIVER, "utf-8")
    url = f"http://127.0.0.1:{port}/"
    command = [sys.executable, "-S", str(program), str(port)]
    for acted in (url, str(tmp_path)):
        result = CliRunner().invoke(main, ["receiver-test", url, "--acted", acted, "--", *command])
        assert (result.exit_code, result.stdout) == (1, "")
        assert len(result.stderr.splitlines()) == 1
        assert f"Error: {acted} " in result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["localhost:80", "--acted", "x", "--secret", "s"], "must begin with http"),
        # Without a secret or a command nothing is tested.
        (["http://127.0.0.1:1/", "--acted", "x"], "Error"),
    ],
)
def test_unusable_arguments_are_refused(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(main, ["receiver-test", *arguments])
    assert result.exit_code == 2
    assert said in result.output
