"""Completion in the shells themselves: the script is sourced, and the shell completes words."""

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from command_line import pending

from agentpay import AgentPay
from agentpay_server import AgentPayServer

pytestmark = pytest.mark.unmeasured

WAIT_SECONDS = 120


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home directory with one profile, and a directory of programs with `agentpay` in it."""
    config = tmp_path / "config.toml"
    config.write_text('[profiles."staging"]\nbase_url = "https://pay.example"\napi_key = "ap_operator_x"\n')
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("agentpay", "agentpay-server", "agentpay-lab"):
        program, module = programs / name, name.replace("-", "_")
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m {module} "$@"\n')
        program.chmod(0o755)
    return tmp_path


def environment(home: Path) -> dict[str, str]:
    path = f"{home / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return {
        "HOME": str(home),
        "PATH": path,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "AGENTPAY_CONFIG": str(home / "config.toml"),
        "TERM": "dumb",
    }


def said(home: Path, shell: str, script: str) -> str:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    ended = subprocess.run(
        [shell, "-c", script],
        capture_output=True,
        text=True,
        env=environment(home),
        timeout=WAIT_SECONDS,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout


CASES = [
    (["agentpay", "acc"], {"accounts"}),
    (
        ["agentpay", "accounts", ""],
        {"create", "fund", "get", "history", "list", "pause-all", "policy", "resume-all", "unblock"},
    ),
    (["agentpay", "listen", "--events", "transfer.settled,esc"], {"transfer.settled,escalation.required"}),
    (["agentpay", "whoami", "--profile", "st"], {"staging"}),
    (["agentpay-server", "dem"], {"demo"}),
    (["agentpay-lab", "crash-test", "--pu"], {"--purchases"}),
]


def test_bash_completes(home: Path) -> None:
    programs = {words[0]: f"_{words[0].replace('-', '_')}_completion" for words, _ in CASES}
    script = [f'eval "$({name} completion bash)"; complete -p {name} >/dev/null' for name in programs]
    for words, _ in CASES:
        given = " ".join(f"'{word}'" for word in words)
        script += [f"COMPREPLY=(); COMP_WORDS=({given}); COMP_CWORD={len(words) - 1}"]
        script += [f"COMP_LINE='{' '.join(words)}'; COMP_POINT=${{#COMP_LINE}}"]
        script += [f"{programs[words[0]]} {words[0]} '{words[-1]}'"]
        script += ['echo "${COMPREPLY[@]}"']
    told = said(home, "bash", "\n".join(script)).splitlines()
    assert [set(line.split()) for line in told] == [expected for _, expected in CASES]


def test_fish_completes(home: Path) -> None:
    for words, expected in CASES:
        script = f"{words[0]} completion fish | source; complete --do-complete '{' '.join(words)}'"
        completed = said(home, "fish", script).splitlines()
        assert {line.partition("\t")[0] for line in completed} == expected


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("agentpay acc", "agentpay accounts"),
        ("agentpay whoami --profile st", "--profile staging"),
        ("agentpay-server dem", "agentpay-server demo"),
    ],
)
def test_zsh_completes(home: Path, typed: str, expected: str) -> None:
    if shutil.which("zsh") is None:
        pytest.skip("zsh is not installed")
    program = typed.partition(" ")[0]
    with interactive(home, "zsh", "-f", "-i") as terminal:
        load = f'autoload -Uz compinit; compinit -u -d "$HOME/dump"; eval "$({program} completion zsh)"'
        # The mark is put together by the shell: typing it is not reading it.
        type_(terminal, f'PS1=""; {load}; echo "re""ady"\n')
        read_until(terminal, "ready")
        type_(terminal, f"{typed}\t")
        read_until(terminal, expected)


@contextmanager
def interactive(home: Path, *command: str, **more: str) -> Iterator[int]:
    """Run a shell on a new terminal."""
    terminal, theirs = pty.openpty()
    with subprocess.Popen(
        command,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment(home) | more,
        start_new_session=True,
    ) as shell:
        os.close(theirs)
        try:
            yield terminal
        finally:
            shell.kill()
            os.close(terminal)


def type_(terminal: int, text: str) -> None:
    os.write(terminal, text.encode())


def read_until(terminal: int, expected: str) -> None:
    shown, end = "", time.monotonic() + WAIT_SECONDS
    while expected not in shown:
        assert time.monotonic() < end, shown
        if select.select([terminal], [], [], 0.5)[0]:
            shown += os.read(terminal, 65536).decode("utf-8", "replace")


BASH = [
    ("agentpay accounts get Res", "get Research\\ bot"),
    ("agentpay accounts get Research\\ b", "get Research\\ bot"),
    ('agentpay accounts get "Res', 'get "Research bot"'),
    ("agentpay accounts get @res", "get @research-bot"),
    ("agentpay keys revoke it", "revoke it\\'s\\ a\\ key"),
    ("agentpay transfers list --by it", "--by it\\'s\\ a\\ key"),
    ("agentpay webhooks test http", "test http://127.0.0.1:9/hooks\\?a=\\$b"),
    ("agentpay webhooks test http://127.", "test http://127.0.0.1:9/hooks\\?a=\\$b"),
    ("agentpay approvals approve txn_", "approve {pending}"),
    ("agentpay transfers create --from Res", "--from Research\\ bot"),
]


def test_bash_completes_what_the_service_knows_and_quotes_it(
    home: Path, server: AgentPayServer, client: AgentPay
) -> None:
    account_id = client.accounts.create(name="Research bot").account_id
    server.sandbox.fund(account_id, "10")
    client.agent_keys.create(account_id, name="it's a key")
    client.webhooks.create("http://127.0.0.1:9/hooks?a=$b", events=["transfer.settled"])
    known = {"pending": pending(client, account_id)}
    (home / "config.toml").unlink()
    service = {"AGENTPAY_BASE_URL": server.listen(), "AGENTPAY_API_KEY": server.operator_key}
    with interactive(home, "bash", "--norc", "--noprofile", "-i", **service) as terminal:
        type_(terminal, 'PS1=""; eval "$(agentpay completion bash)"; echo "re""ady"\n')
        read_until(terminal, "ready")
        for typed, expected in BASH:
            type_(terminal, f"{typed}\t")
            read_until(terminal, expected.format(**known))
            # Discards the line.
            type_(terminal, "\x15\n")
