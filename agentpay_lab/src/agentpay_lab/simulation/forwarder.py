"""A program that passes a call on: sellers hide what they do to a channel in an inner instruction."""

from functools import cache
from importlib.resources import files
from typing import Final

from solders.instruction import AccountMeta, Instruction
from solders.litesvm import LiteSVM
from solders.pubkey import Pubkey

FORWARDER: Final = Pubkey.from_bytes(b"agentpay simulation's forwarder.")


@cache
def _built() -> bytes:
    """Return the ELF file that `scripts/channel_program.py` builds from `inner_call.c`."""
    return files("agentpay_lab.simulation").joinpath("inner_call.so").read_bytes()


def add_to(machine: LiteSVM) -> None:
    """Let a machine run it."""
    machine.add_program(FORWARDER, _built())


def forwarded(step: Instruction) -> Instruction:
    """Return the instruction that has the program call another one."""
    program = AccountMeta(step.program_id, is_signer=False, is_writable=False)
    return Instruction(FORWARDER, bytes(step.data), [program, *step.accounts])
