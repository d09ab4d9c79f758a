"""Checks of a seller before it signs: any bytes give a payment or one declared refusal.

The table of refusals is that of the field's own facilitators; where they differ, the stricter one's.
"""

import struct

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from solders.hash import Hash
from solders.instruction import AccountMeta, Instruction
from solders.keypair import Keypair
from solders.message import Message, MessageV0, to_bytes_versioned
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.transaction import VersionedTransaction

from agentpay_server.chain import instructions
from agentpay_server.chain.instructions import USDC_MINTS, associated_token_address
from agentpay_server.plugins.facilitator.settling import InvalidPaymentError, check_payment
from agentpay_server.plugins.pay402.challenges.terms import ChallengeTerms, Leg, Network, Protocol

USDC = USDC_MINTS["mainnet-beta"]
PAYER, FEE_PAYER, SELLER, PARTNER = (Keypair.from_seed(bytes([n]) * 32) for n in range(1, 5))
TERMS = ChallengeTerms(
    protocol=Protocol.MPP,
    network=Network.LOCALNET,
    mint=USDC,
    legs=(
        Leg(recipient=str(SELLER.pubkey()), amount_micro=900, memo="order-42"),
        Leg(recipient=str(PARTNER.pubkey()), amount_micro=100),
    ),
    fee_payer=str(FEE_PAYER.pubkey()),
)


def transfer(owner: Keypair, amount: int, payer: Keypair = PAYER) -> Instruction:
    return instructions.transfer_checked(
        source=Pubkey.from_string(associated_token_address(str(PAYER.pubkey()), USDC)),
        destination=Pubkey.from_string(associated_token_address(str(owner.pubkey()), USDC)),
        owner=payer.pubkey(),
        mint=Pubkey.from_string(USDC),
        amount_micro=amount,
    )


STEPS = (
    instructions.set_compute_unit_limit(60_000),
    instructions.set_compute_unit_price(1),
    transfer(SELLER, 900),
    instructions.memo("order-42"),
    transfer(PARTNER, 100),
)


def signed(*steps: Instruction, fee_payer: Keypair = FEE_PAYER, is_legacy: bool = False) -> bytes:
    message: Message | MessageV0 = MessageV0.try_compile(fee_payer.pubkey(), list(steps), [], Hash.default())
    if is_legacy:
        message = Message.new_with_blockhash(list(steps), fee_payer.pubkey(), Hash.default())
    signatures = [
        PAYER.sign_message(to_bytes_versioned(message)) if key == PAYER.pubkey() else Signature.default()
        for key in message.account_keys[: message.header.num_required_signatures]
    ]
    return bytes(VersionedTransaction.populate(message, signatures))


def check(raw: bytes, terms: ChallengeTerms = TERMS) -> str:
    return check_payment(raw, terms, fee_payers=(str(FEE_PAYER.pubkey()),)).payer


def creation(
    owner: Keypair = PARTNER, payer: Keypair = PAYER, mint: str = USDC, data: bytes = b"\x01"
) -> Instruction:
    step = instructions.create_associated_token_account_idempotent(
        payer=payer.pubkey(), owner=owner.pubkey(), mint=Pubkey.from_string(mint)
    )
    return Instruction(step.program_id, data, step.accounts)


def memo_listing(signer: Keypair) -> Instruction:
    listed = [AccountMeta(signer.pubkey(), is_signer=True, is_writable=True)]
    return Instruction(instructions.MEMO_PROGRAM, b"signed", listed)


def test_a_payment_with_splits_is_accepted_in_any_order() -> None:
    assert check(signed(*STEPS)) == str(PAYER.pubkey())
    assert check(signed(STEPS[4], STEPS[3], STEPS[2], STEPS[1], STEPS[0])) == str(PAYER.pubkey())
    assert check(signed(*STEPS[2:])) == str(PAYER.pubkey())


@pytest.mark.parametrize(
    "steps",
    [
        STEPS[:4],
        (*STEPS[:3], STEPS[4]),
        (*STEPS, instructions.memo("more")),
        (*STEPS, transfer(PARTNER, 1)),
        (*STEPS[:4], transfer(PARTNER, 99)),
        (*STEPS[:4], transfer(PARTNER, 101)),
        (*STEPS[:4], transfer(SELLER, 100)),
        (instructions.set_compute_unit_limit(200_001), *STEPS[1:]),
        (STEPS[0], instructions.set_compute_unit_price(5_000_001), *STEPS[2:]),
        (*STEPS, instructions.transfer_lamports(PAYER.pubkey(), SELLER.pubkey(), 1)),
        (*STEPS, Instruction(instructions.COMPUTE_BUDGET_PROGRAM, b"\x01", [])),
        (*STEPS, creation()),
        (*STEPS, memo_listing(FEE_PAYER)),
    ],
)
def test_a_transaction_with_missing_or_additional_steps_is_refused(steps: tuple[Instruction, ...]) -> None:
    with pytest.raises(InvalidPaymentError):
        check(signed(*steps))


UNSPONSORED = evolve(TERMS, fee_payer=None)


def test_a_payer_of_the_fee_may_create_the_token_account_of_a_split() -> None:
    steps = (*STEPS[:4], creation(), STEPS[4])
    assert check(signed(*steps, fee_payer=PAYER), UNSPONSORED) == str(PAYER.pubkey())


@pytest.mark.parametrize(
    "step",
    [
        creation(SELLER),
        creation(PAYER),
        creation(payer=SELLER),
        creation(mint=USDC_MINTS["devnet"]),
        creation(data=b"\x00"),
        creation(data=b""),
        Instruction(creation().program_id, b"\x01", creation().accounts[:5]),
        Instruction(creation().program_id, b"\x01", [*creation().accounts[:5], creation().accounts[2]]),
        Instruction(creation().program_id, b"\x01", [*creation().accounts, creation().accounts[2]]),
    ],
    ids=["primary", "payer", "other payer", "mint", "not idempotent", "no data", "short", "program", "long"],
)
def test_every_other_creation_is_refused(step: Instruction) -> None:
    with pytest.raises(InvalidPaymentError, match="unexpected instruction"):
        check(signed(*STEPS, step, fee_payer=PAYER), UNSPONSORED)


def test_the_sellers_fee_payer_creates_no_token_account() -> None:
    with pytest.raises(InvalidPaymentError):
        check(signed(*STEPS, creation(payer=FEE_PAYER)))
    with pytest.raises(InvalidPaymentError):
        check(signed(*STEPS, creation(payer=FEE_PAYER), fee_payer=PAYER), UNSPONSORED)


def test_only_the_fee_payer_of_the_challenge_may_pay_the_fee() -> None:
    with pytest.raises(InvalidPaymentError, match="fee payer"):
        check(signed(*STEPS, fee_payer=PAYER))
    assert check(signed(*STEPS, fee_payer=PAYER), evolve(TERMS, fee_payer=None)) == str(PAYER.pubkey())


# --- x402

LIMIT, UNIT_PRICE, PAY = STEPS[:3]
NONCE = instructions.memo("nonce")
X402 = evolve(TERMS, protocol=Protocol.X402_V2, legs=(Leg(recipient=str(SELLER.pubkey()), amount_micro=900),))
WITH_MEMO = evolve(X402, legs=TERMS.legs[:1])
UNCHECKED = Instruction(
    instructions.TOKEN_PROGRAM, struct.pack("<BQ", 3, 900), [PAY.accounts[each] for each in (0, 2, 3)]
)


def test_harmless_deviations_are_accepted() -> None:
    for last in ([], [NONCE], [NONCE, NONCE], [memo_listing(FEE_PAYER)], [memo_listing(PAYER)]):
        assert check(signed(LIMIT, UNIT_PRICE, PAY, *last), X402) == str(PAYER.pubkey())
    high = instructions.set_compute_unit_limit(1_400_000)
    assert check(signed(high, UNIT_PRICE, PAY, NONCE), X402) == str(PAYER.pubkey())
    assert check(signed(LIMIT, UNIT_PRICE, PAY, NONCE, is_legacy=True), X402) == str(PAYER.pubkey())
    assert check(signed(*STEPS[:4]), WITH_MEMO) == str(PAYER.pubkey())


REFUSED: list[tuple[tuple[Instruction, ...], ChallengeTerms, str]] = [
    ((UNIT_PRICE, LIMIT, PAY, NONCE), X402, "compute_limit_instruction"),
    ((LIMIT, NONCE, PAY), X402, "compute_price_instruction"),
    (
        (LIMIT, instructions.set_compute_unit_price(5_000_001), PAY),
        X402,
        "price_instruction_too_high",
    ),
    ((LIMIT, UNIT_PRICE), X402, "instructions_length"),
    ((LIMIT, UNIT_PRICE, PAY, *[NONCE] * 4), X402, "instructions_length"),
    ((LIMIT, UNIT_PRICE, UNCHECKED, NONCE), X402, "no_transfer_instruction"),
    ((LIMIT, UNIT_PRICE, PAY, creation(SELLER)), X402, "unknown_fourth_instruction"),
    ((LIMIT, UNIT_PRICE, PAY, NONCE, transfer(SELLER, 1)), X402, "unknown_fifth_instruction"),
    ((LIMIT, UNIT_PRICE, transfer(PAYER, 900), NONCE), X402, "recipient_mismatch"),
    ((LIMIT, UNIT_PRICE, transfer(SELLER, 900, FEE_PAYER)), X402, "fee_payer_transferring_funds"),
    ((LIMIT, UNIT_PRICE, transfer(SELLER, 901)), X402, "amount_mismatch"),
    ((LIMIT, UNIT_PRICE, transfer(SELLER, 899)), X402, "amount_mismatch"),
    ((LIMIT, UNIT_PRICE, PAY), evolve(X402, mint=USDC_MINTS["devnet"]), "mint_mismatch"),
    ((LIMIT, UNIT_PRICE, PAY, NONCE), WITH_MEMO, "memo_mismatch"),
    ((*STEPS[:4], STEPS[3]), WITH_MEMO, "memo_count"),
]


@pytest.mark.parametrize(("steps", "terms", "reason"), REFUSED)
def test_every_other_deviation_is_refused_with_its_reason(
    steps: tuple[Instruction, ...], terms: ChallengeTerms, reason: str
) -> None:
    with pytest.raises(InvalidPaymentError) as caught:
        check(signed(*steps), terms)
    assert caught.value.reason.endswith(reason)


# --- Any bytes

GOOD = {Protocol.MPP: signed(*STEPS), Protocol.X402_V2: signed(*STEPS[:4])}
ASKED = {Protocol.MPP: TERMS, Protocol.X402_V2: evolve(TERMS, protocol=Protocol.X402_V2, legs=TERMS.legs[:1])}


# Few altered transactions get as far as the last checks.
@settings(max_examples=400)
@given(
    protocol=st.sampled_from(list(GOOD)),
    places=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4),
    cut=st.integers(0, 40),
)
def test_altered_bytes_pay_the_same_or_are_refused(
    protocol: Protocol, places: list[tuple[int, int]], cut: int
) -> None:
    raw = bytearray(GOOD[protocol])
    for place, value in places:
        raw[place % len(raw)] = value
    del raw[len(raw) - cut :]
    try:
        checked = check_payment(bytes(raw), ASKED[protocol], fee_payers=(str(FEE_PAYER.pubkey()),))
    except InvalidPaymentError:
        return
    keys = checked.transaction.message.account_keys
    paid = [
        (str(keys[step.accounts[2]]), int.from_bytes(bytes(step.data)[1:9], "little"))
        for step in checked.transaction.message.instructions
        if keys[step.program_id_index] == instructions.TOKEN_PROGRAM
    ]
    wanted = [
        (associated_token_address(leg.recipient, USDC), leg.amount_micro) for leg in ASKED[protocol].legs
    ]
    assert sorted(paid) == sorted(wanted)


@given(st.binary(max_size=1_300))
def test_arbitrary_bytes_are_refused(raw: bytes) -> None:
    for terms in ASKED.values():
        with pytest.raises(InvalidPaymentError):
            check_payment(raw, terms, fee_payers=())
