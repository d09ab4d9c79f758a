"""`agentpay-server operators create`: on the store itself, with a server running on it or not.

See interface K8, K9.
"""

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import books
import pytest
import stores
from attrs import frozen
from click.testing import CliRunner, Result

from agentpay_server import AgentPayServer, Settings
from agentpay_server.cli import main

SETTINGS = Settings(encryption_key=stores.KEY)


def run(*arguments: str, **environment: str) -> Result:
    result = CliRunner(env=environment).invoke(main, ["operators", "create", *arguments])
    assert "Traceback" not in result.output
    return result


def made(*arguments: str) -> Any:
    result = run(*arguments, "--json")
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    (line,) = result.stdout.splitlines()
    return json.loads(line)


@frozen
class Place:
    """A store, as an option of the command and of a server."""

    options: list[str]
    where: dict[str, Any]

    def server(self) -> AgentPayServer:
        return AgentPayServer(settings=SETTINGS, **self.where)

    def rows(self, table: str) -> list[dict[str, Any]]:
        return asyncio.run(stores.on_data(self.where, lambda database: books.rows(database, table)))


@pytest.fixture(params=["file", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "file":
        directory = tmp_path / "data"
        yield Place(["--data-dir", str(directory)], {"data_dir": directory})
        return
    url = asyncio.run(stores.fresh_url())
    yield Place(["--database-url", url], {"database_url": url})
    stores.run.free.append(url)


def test_an_operator_can_be_created_while_the_server_is_stopped(place: Place) -> None:
    with place.server() as server:
        key = server.operator_key
        server.client().accounts.create(name="first's")

    operator = made("Second", *place.options)

    assert set(operator) == {"operator_id", "key"}
    with place.server() as server:
        second = server.client(api_key=operator["key"])
        assert list(second.accounts.list()) == []
        account = second.accounts.create(name="second's")
        assert [each.name for each in server.client(api_key=key).accounts.list()] == ["first's"]
        assert [each.account_id for each in second.accounts.list()] == [account.account_id]
        # The trail of the first operator says nothing of another one.
        assert [entry.action for entry in server.console.audit_log.list()].count("operators.create") == 1


@pytest.mark.parametrize("exists", [True, False])
def test_a_directory_without_the_data_of_a_server_is_refused_and_left_alone(
    tmp_path: Path, exists: bool
) -> None:
    directory = tmp_path / "typo"
    if exists:
        directory.mkdir()
    result = run("Second", "--data-dir", str(directory))
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"{directory} has no data of a server" in result.stderr
    assert list(tmp_path.rglob("*")) == ([directory] if exists else [])


def test_creating_an_operator_stores_only_a_digest_and_is_audited(place: Place) -> None:
    with place.server():
        pass
    result = run("Second", *place.options)
    assert result.exit_code == 0
    assert "it is shown only once" in result.stderr
    operator_id, key = (re.findall(rf"{prefix}\w+", result.stdout)[0] for prefix in ("op_", "ap_operator_"))
    (entry,) = (row for row in place.rows("audit") if row["subject"] == operator_id)
    assert (entry["operator_id"], entry["action"]) == (operator_id, "operators.create")
    assert key not in str(place.rows("api_keys"))


def test_on_postgresql_an_operator_can_be_created_before_and_beside_a_server() -> None:
    url = asyncio.run(stores.fresh_url())
    first = json.loads(run("First", "--json", AGENTPAY_SERVER_DATABASE_URL=url).stdout)
    with AgentPayServer(database_url=url, settings=SETTINGS) as server:
        assert server.client(api_key=first["key"]).accounts.create(name="a").status == "active"
        second = made("Second", "--database-url", url)
        assert list(server.client(api_key=second["key"]).accounts.list()) == []
    stores.run.free.append(url)


def test_a_directory_in_use_by_a_server_is_refused(tmp_path: Path) -> None:
    with AgentPayServer(data_dir=tmp_path):
        result = run("Second", "--data-dir", str(tmp_path))
    assert (result.exit_code, result.stdout) == (1, "")
    assert "another server" in result.stderr


def test_an_older_postgresql_schema_is_not_migrated(monkeypatch: pytest.MonkeyPatch) -> None:
    url = asyncio.run(stores.fresh_url())
    stores.be_next_release(monkeypatch)
    result = run("Second", "--database-url", url)
    assert result.exit_code == 1
    assert "older version of agentpay-server" in result.stderr
    assert "start a server of this version on it first" in result.stderr
    stores.run.free.append(url)


@pytest.mark.parametrize(
    ("arguments", "exit_code", "told"),
    [
        (["Second", "--data-dir", ""], 2, "'--data-dir': the path must not be empty."),
        (["Second"], 2, "pass either --data-dir or --database-url"),
        (["Second", "--data-dir", "x", "--database-url", "postgresql://x/y"], 2, "pass either --data-dir or"),
        (["", "--data-dir", "x"], 2, "must not be empty"),
        (["a\nb", "--data-dir", "x"], 2, "must not contain control characters"),
        (["x" * 101, "--data-dir", "x"], 2, "at most 100 characters"),
        (["Second", "--database-url", "mysql://x/y"], 2, "starts with postgresql://"),
        (["Second", "--database-url", "postgresql://a@127.0.0.1:1/b"], 1, "PostgreSQL did not respond"),
    ],
)
def test_options_that_cannot_be_used_are_refused(
    arguments: list[str], exit_code: int, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(*arguments)
    assert result.exit_code == exit_code, result.output
    assert told in " ".join(result.stderr.split())
    assert list(tmp_path.iterdir()) == []
