"""The RPC node's pure parts: base58, requests, parameters and errors, in the forms that clients read."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from solders.account import Account
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.token.state import Mint
from solders.transaction_status import (
    InstructionErrorCustom,
    InstructionErrorFieldless,
    TransactionErrorFieldless,
    TransactionErrorInstructionError,
    TransactionErrorInsufficientFundsForRent,
)

from agentpay_server.chain import parsing
from agentpay_server.chain.instructions import SYSTEM_PROGRAM, TOKEN_2022_PROGRAM, TOKEN_PROGRAM
from agentpay_server.plugins.node import parsed
from agentpay_server.plugins.node.jsonrpc import MOST_CALLS, Options, Params, RpcError, read_request, refusal
from agentpay_server.plugins.node.rendering import (
    account_form,
    account_json,
    error_json,
    error_words,
    read_transaction,
)

# --- Base58


@given(raw=st.binary(max_size=100))
def test_base58_round_trips(raw: bytes) -> None:
    assert parsing.from_base58(parsing.to_base58(raw)) == raw


def test_invalid_base58_is_refused() -> None:
    for text in ("0", "O", "I", "l", "é", " 1"):
        with pytest.raises(ValueError, match="base58"):
            parsing.from_base58(text)


# --- Requests


def call(**fields: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "getSlot", **fields}).encode()


def code_of(body: bytes) -> int | None:
    request = read_request(body)
    (found,) = request.calls
    return None if found.error is None else found.error.code


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (call(), None),
        (call(params=None), None),
        (call(params=[]), None),
        (call(id="x"), None),
        (call(id=None), None),
        (call(params={}), -32602),
        (call(jsonrpc="1.0"), -32600),
        (call(method=3), -32600),
        (call(id=[1]), -32600),
        (call(id=True), -32600),
        (call(id="x" * 257), -32600),
        (b"3", -32600),
        (b"[]", -32600),
        (b"[" + b",".join([call()] * (MOST_CALLS + 1)) + b"]", -32600),
        (b"", -32700),
        (b"{", -32700),
        (b'{"a": NaN}', -32700),
        (b"[" * 1000, -32700),
        (b"[" * 20 + b"]" * 20, -32700),
        (b"\xff", -32700),
    ],
)
def test_requests_are_parsed_or_refused_with_their_code(body: bytes, code: int | None) -> None:
    assert code_of(body) == code


def test_a_batch_is_parsed_call_by_call() -> None:
    request = read_request(b"[" + call(id=1) + b"," + call(id=2) + b", 7]")
    assert request.is_batch
    assert [found.id for found in request.calls] == [1, 2, None]
    assert [found.error is None for found in request.calls] == [True, True, False]


def test_a_call_without_an_id_is_a_notification() -> None:
    (found,) = read_request(b'{"jsonrpc": "2.0", "method": "getSlot"}').calls
    assert found.is_notification


@given(body=st.binary(max_size=300))
def test_arbitrary_bytes_give_calls_or_refusals(body: bytes) -> None:
    request = read_request(body)
    assert request.calls
    for found in request.calls:
        if found.error is not None:
            assert refusal(found, found.error)["jsonrpc"] == "2.0"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


# --- Parameters


@given(values=st.lists(JSON, max_size=3))
def test_any_parameters_are_parsed_or_raise_rpc_error(values: list[Any]) -> None:
    params, codes = Params(values), set()
    for read in (
        params.address,
        params.signature,
        params.text,
        params.count,
        params.options,
        params.options_or_encoding,
        lambda index: params.addresses(index, most=3),
        lambda index: params.signatures(index, most=3),
        lambda index: account_form(params.options(index)),
        lambda index: params.options(index).commitment(),
        lambda index: params.options(index).items("filters", most=2),
        lambda index: params.options(index).flag("sigVerify"),
    ):
        try:
            read(0)
        except RpcError as error:
            codes.add(error.code)
    assert codes <= {-32602}


# --- Errors


@pytest.mark.parametrize(
    ("error", "as_json", "as_words"),
    [
        (TransactionErrorFieldless.BlockhashNotFound, "BlockhashNotFound", "Blockhash not found"),
        (
            TransactionErrorInstructionError(2, InstructionErrorCustom(1)),
            {"InstructionError": [2, {"Custom": 1}]},
            "Error processing Instruction 2: custom program error: 0x1",
        ),
        (
            TransactionErrorInstructionError(0, InstructionErrorFieldless.InvalidAccountData),
            {"InstructionError": [0, "InvalidAccountData"]},
            "Error processing Instruction 0: invalid account data for instruction",
        ),
        (
            TransactionErrorInsufficientFundsForRent(3),
            {"InsufficientFundsForRent": {"account_index": 3}},
            "Transaction results in an account (3) with insufficient funds for rent",
        ),
    ],
)
def test_errors_have_the_form_of_a_validator(error: Any, as_json: object, as_words: str) -> None:
    assert error_json(error) == as_json
    assert error_words(error) == as_words


# --- Accounts


def test_a_mint_is_parsed_and_other_accounts_are_returned_encoded() -> None:
    key = Keypair().pubkey()
    data = bytes(Mint(key, 5, 6, is_initialized=True, freeze_authority=None))
    form = account_form(Options({"encoding": "jsonParsed"}))

    def shown(account: Account) -> Any:
        found = account_json(account, form, lambda _: 6)
        assert found is not None
        return found["data"]

    assert shown(Account(1, data, TOKEN_PROGRAM))["parsed"]["info"] == {
        "decimals": 6,
        "freezeAuthority": None,
        "isInitialized": True,
        "mintAuthority": str(key),
        "supply": "5",
    }
    assert shown(Account(1, data + b"\1", TOKEN_2022_PROGRAM))[1] == "base64"
    assert shown(Account(1, b"abc", key)) == ["YWJj", "base64"]
    assert account_json(None, form, lambda _: 6) is None
    assert account_json(Account(0, b"", key), form, lambda _: 6) is None


def test_base58_data_is_bounded_and_data_slices_apply() -> None:
    account = Account(1, bytes(range(200)), Keypair().pubkey())
    with pytest.raises(RpcError, match="128 bytes"):
        account_json(account, account_form(Options({})), lambda _: 0)
    sliced = account_form(Options({"dataSlice": {"offset": 198, "length": 9}, "encoding": "base58"}))
    found = account_json(account, sliced, lambda _: 0)
    assert found is not None
    assert found["data"] == [parsing.to_base58(bytes([198, 199])), "base58"]
    assert found["space"] == 200


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "0"),
        (1, "0.000001"),
        (1_000_000, "1"),
        (1_500_000, "1.5"),
        (10**15, "1000000000"),
        (100, "0.0001"),
    ],
)
def test_token_amounts_are_exact_text(amount: int, text: str) -> None:
    assert parsed.token_amount(amount, 6) | {"uiAmount": None} == {
        "amount": str(amount),
        "decimals": 6,
        "uiAmount": None,
        "uiAmountString": text,
    }


@given(program=st.sampled_from(list(parsed._NAMES)), data=st.binary(max_size=60), count=st.integers(0, 6))
def test_any_instruction_is_parsed_or_returned_encoded(program: Pubkey, data: bytes, count: int) -> None:
    found = parsed.parsed_instruction(program, [str(Keypair().pubkey())] * count, data)
    assert found is None or found["program"] == parsed._NAMES[program]


@pytest.mark.parametrize(
    ("program", "data"),
    [
        (TOKEN_PROGRAM, b"\x12" + bytes(31)),
        (SYSTEM_PROGRAM, bytes(51)),
        (SYSTEM_PROGRAM, b"\1\0\0\0" + bytes(31)),
    ],
    ids=["initializeAccount3", "createAccount", "assign"],
)
def test_an_instruction_whose_address_is_cut_off_is_returned_encoded(program: Pubkey, data: bytes) -> None:
    accounts = [str(Keypair().pubkey())] * 2
    assert parsed.parsed_instruction(program, accounts, data) is None
    whole = parsed.parsed_instruction(program, accounts, data + b"\0")
    assert whole is not None
    assert str(Pubkey(bytes(32))) in whole["parsed"]["info"].values()


# --- Transactions


@given(text=st.text(max_size=50) | st.binary(max_size=400).map(parsing.to_base58))
def test_any_text_is_a_transaction_or_refused_as_invalid_params(text: str) -> None:
    codes = set()
    for encoding in ("base58", "base64"):
        try:
            read_transaction(text, encoding)
        except RpcError as error:
            codes.add(error.code)
    assert codes <= {-32602}


def test_a_transaction_text_that_is_too_long_is_refused_before_decoding() -> None:
    for text, encoding in (("1" * 1684, "base58"), ("A" * 1648, "base64"), ("1" * 1500, "base58")):
        with pytest.raises(RpcError, match="too large"):
            read_transaction(text, encoding)
