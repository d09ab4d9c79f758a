"""Explorer links (interface T11), and what a program's refusal is called."""

import pytest

from agentpay_server.chain.clusters import explorer_url
from agentpay_server.chain.instructions import SYSTEM_PROGRAM, TOKEN_PROGRAM
from agentpay_server.chain.parsing import failure_reason, json_failure_reason
from agentpay_server.chain.protocol import FailureReason


@pytest.mark.parametrize(
    ("cluster", "query"),
    [
        ("mainnet-beta", ""),
        ("devnet", "?cluster=devnet"),
        ("testnet", "?cluster=testnet"),
        ("http://127.0.0.1:8899", "?cluster=custom&customUrl=http%3A%2F%2F127.0.0.1%3A8899"),
        ("http://[::1]:8899", "?cluster=custom&customUrl=http%3A%2F%2F%5B%3A%3A1%5D%3A8899"),
    ],
)
def test_each_cluster_has_its_explorer_query(cluster: str, query: str) -> None:
    assert explorer_url("5sig", cluster) == f"https://explorer.solana.com/tx/5sig{query}"


def test_api_keys_in_rpc_urls_are_not_published() -> None:
    url = explorer_url("5sig", "https://user:SECRET@rpc.example:443/v2/SECRET?api-key=SECRET#SECRET")
    assert (
        url == "https://explorer.solana.com/tx/5sig?cluster=custom&customUrl=https%3A%2F%2Frpc.example%3A443"
    )


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (1, FailureReason.INSUFFICIENT_FUNDS),
        (17, FailureReason.ACCOUNT_FROZEN),
        (11, FailureReason.ACCOUNT_NOT_EMPTY),
        ("InvalidAccountData", FailureReason.ACCOUNT_MISSING),
        ("UninitializedAccount", FailureReason.ACCOUNT_MISSING),
        (4, FailureReason.OTHER),
        ("ComputationalBudgetExceeded", FailureReason.OTHER),
        (987_654, FailureReason.OTHER),
    ],
)
def test_only_codes_of_the_token_program_have_a_reason(error: int | str, reason: FailureReason) -> None:
    assert failure_reason(str(TOKEN_PROGRAM), error) is reason
    assert failure_reason(str(SYSTEM_PROGRAM), error) is FailureReason.OTHER


@pytest.mark.parametrize(
    ("error", "programs", "reason"),
    [
        ({"InstructionError": [1, {"Custom": 1}]}, ["memo", str(TOKEN_PROGRAM)], "insufficient_funds"),
        ({"InstructionError": [0, "InvalidAccountData"]}, [str(TOKEN_PROGRAM)], "account_missing"),
        ({"InstructionError": [0, {"Custom": 1}]}, ["memo", str(TOKEN_PROGRAM)], "other"),
        ({"InstructionError": [2, {"Custom": 1}]}, [str(TOKEN_PROGRAM)], "other"),
        ({"InstructionError": [-1, {"Custom": 1}]}, [str(TOKEN_PROGRAM)], "other"),
        ({"InstructionError": [0, {"BorshIoError": "x"}]}, [str(TOKEN_PROGRAM)], "other"),
        ({"InstructionError": [0, []]}, [str(TOKEN_PROGRAM)], "other"),
        ("AccountNotFound", [str(TOKEN_PROGRAM)], "other"),
    ],
)
def test_a_json_error_is_mapped_by_the_program_that_was_called(
    error: object, programs: list[str], reason: str
) -> None:
    assert json_failure_reason(error, programs) == reason
