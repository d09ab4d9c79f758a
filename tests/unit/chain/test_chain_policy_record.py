"""The policy record: read back as written, by a single writer, never partially."""

import pytest
from chain_world import World, run
from hypothesis import given, settings
from hypothesis import strategies as st
from solders.pubkey import Pubkey

from agentpay_server.chain import instructions, transactions
from agentpay_server.chain.custody import (
    MAX_TRANSACTION_BYTES,
    POLICY_AUTHORITY,
    TEST_MINT_AUTHORITY,
    TREASURY,
    KeyPath,
    record_key,
    sign_transaction,
    spending_key,
)
from agentpay_server.chain.protocol import SignatureStatus
from agentpay_server.chain.transactions import MAX_POLICY_CHARACTERS, PolicyRecord, read_policy_record

POLICY = '{"max_daily_spend":100,"paused":false}'


def policy_record(version: int = 1, policy: str | None = POLICY) -> PolicyRecord:
    return PolicyRecord(
        account_id="acct_01jgfjjz000123456789abcdef",
        policy_version=version,
        policy_sha256=f"{version:064x}",
        policy=policy,
    )


def rent_missing(world: World, index: int) -> int:
    lamports, size = run(world.chain.account_size(world.custody.address(record_key(index)))) or (0, 0)
    return run(world.chain.rent_exemption(size)) - lamports


def test_a_policy_too_long_for_the_creation_is_written_by_the_next_update(world: World) -> None:
    record = policy_record(1, "p" * MAX_POLICY_CHARACTERS)
    world.land(world.write_record(1, record))
    assert world.record(1) == policy_record(1, None)
    second = policy_record(2, record.policy)
    world.land(world.write_record(1, second))
    assert world.record(1) == second


@pytest.mark.parametrize("policy", [None, "p" * (MAX_POLICY_CHARACTERS + 1), "é" * MAX_POLICY_CHARACTERS])
def test_a_policy_too_long_for_a_record_removes_the_older_one(world: World, policy: str | None) -> None:
    world.land(world.write_record(1, policy_record(1)))
    world.land(world.write_record(1, policy_record(2, policy)))
    assert world.record(1) == policy_record(2, None)
    world.land(world.write_record(1, policy_record(3, policy)))
    assert world.record(1) == policy_record(3, None)
    world.land(world.write_record(1, policy_record(4)))
    assert world.record(1) == policy_record(4)


@settings(max_examples=40, deadline=None)
@given(policies=st.lists(st.one_of(st.none(), st.text(max_size=900)), min_size=1, max_size=5))
def test_any_series_of_policies_is_read_back_or_absent(policies: list[str | None]) -> None:
    world = World()
    for version, policy in enumerate(policies, start=1):
        record = policy_record(version, policy)
        transaction = world.write_record(1, record)
        assert len(transaction.raw) <= MAX_TRANSACTION_BYTES
        world.land(transaction)
        assert world.record(1) in (record, policy_record(version, None))
        if policy is not None and len(policy.encode()) <= 400:
            assert world.record(1) == record
        assert rent_missing(world, 1) <= 0


def test_creating_a_record_twice_fails_and_keeps_the_first(world: World) -> None:
    racer = transactions.write_policy_record(
        world.custody,
        world.blockhash(),
        account_index=1,
        record=policy_record(2),
        present=None,
        rent_exempt_lamports=run(world.chain.rent_exemption(policy_record(2).size)),
    )
    world.land(world.write_record(1, policy_record(1)))
    status = world.send(racer)
    assert status is not None
    assert status.failure is not None
    assert world.record(1) == policy_record(1)


@pytest.mark.parametrize("key", [spending_key(1), record_key(1), TEST_MINT_AUTHORITY, TREASURY])
def test_only_the_policy_authority_can_write(world: World, key: KeyPath) -> None:
    world.account(1, 10)
    world.land(world.write_record(1, policy_record()))
    mint = world.pubkey(record_key(1))
    for step in (
        instructions.update_metadata_field(mint=mint, authority=world.pubkey(key), key="policy", value="{}"),
        instructions.remove_metadata_field(mint=mint, authority=world.pubkey(key), key="policy"),
    ):
        status = world.send(sign_transaction(world.custody, world.blockhash(), [step], key))
        assert status is not None
        assert status.failure is not None
    assert world.record(1) == policy_record()


def test_an_update_without_the_signature_of_the_policy_authority_writes_nothing(world: World) -> None:
    world.land(world.write_record(1, policy_record()))
    step = instructions.update_metadata_field(
        mint=world.pubkey(record_key(1)), authority=world.policy_authority(), key="policy", value="{}"
    )
    honest = sign_transaction(world.custody, world.blockhash(), [step], POLICY_AUTHORITY)
    forged = honest.raw[:65] + world.custody.sign(spending_key(1), honest.raw[129:]) + honest.raw[129:]
    run(world.chain.send(forged))
    assert world.status(honest) == SignatureStatus(is_final=False, is_refused=True)
    assert world.record(1) == policy_record()


def test_lamports_sent_to_the_record_address_do_not_prevent_its_creation(world: World) -> None:
    step = instructions.transfer_lamports(world.pubkey(TREASURY), world.pubkey(record_key(1)), 1_000_000)
    world.land(sign_transaction(world.custody, world.blockhash(), [step]))
    world.land(world.write_record(1, policy_record()))
    assert world.record(1) == policy_record()
    assert rent_missing(world, 1) == 0


# --- Reading


@given(data=st.binary(max_size=600))
def test_arbitrary_bytes_parse_or_raise_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        read_policy_record(data)


def test_truncated_and_altered_records_parse_or_raise_value_error(world: World) -> None:
    world.land(world.write_record(1, policy_record()))
    data = world.record_data(1)
    damaged = [data[:end] for end in range(len(data))]
    damaged += [data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :] for at in range(len(data))]
    read = 0
    for candidate in damaged:
        try:
            assert isinstance(read_policy_record(candidate), PolicyRecord)
            read += 1
        except ValueError:
            pass
    assert 0 < read < len(damaged)


def test_accounts_without_metadata_are_refused_as_records(world: World) -> None:
    for address in (world.usdc, world.account(1, 10)):
        account = world.svm.get_account(Pubkey.from_string(address))
        assert account is not None
        with pytest.raises(ValueError, match="no metadata"):
            read_policy_record(account.data)


def test_metadata_without_the_record_fields_is_refused(world: World) -> None:
    world.land(world.write_record(1, policy_record()))
    remove = instructions.remove_metadata_field(
        mint=world.pubkey(record_key(1)), authority=world.policy_authority(), key="policy_sha256"
    )
    status = world.send(sign_transaction(world.custody, world.blockhash(), [remove], POLICY_AUTHORITY))
    assert status == SignatureStatus(is_final=True)
    with pytest.raises(ValueError, match="no field 'policy_sha256'"):
        world.record(1)
