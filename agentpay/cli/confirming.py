"""Asking on a terminal before a command does what cannot be undone. A script is never asked."""

import sys
from collections.abc import Callable

import click

from agentpay.cli.output import Output
from agentpay.contract.printable import printable


def confirm(output: Output, question: Callable[[], str], *, is_yes: bool) -> None:
    """Ask on a terminal, and end the command if the answer is no.

    `question` returns what will happen, with names. It may ask the server, and is only called to be shown.
    """
    if is_yes or output.is_json or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    click.confirm(printable(question()), abort=True, err=True)
