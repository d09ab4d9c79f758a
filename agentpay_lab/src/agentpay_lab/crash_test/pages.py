"""The report of a trial: lines for people, and one self-contained HTML page."""

from collections.abc import Iterator
from html import escape

from attrs import frozen

from agentpay_lab.crash_test.orders import LEAST_PAID, Bought, TrialReport, collapsed

_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:60rem;padding:0 1rem}"
    "table{border-collapse:collapse;width:100%}td,th{border-bottom:1px solid #ccc;padding:.3rem .6rem;"
    "text-align:left}.wrong{background:#fee}code{font-family:ui-monospace,monospace}"
)


@frozen(kw_only=True)
class SellerRow:
    """The orders of sellers that behave alike; `settled` and `twice` according to the chain."""

    seller: str
    purchases: int
    asked: int
    served: int
    refused: int
    settled: int
    twice: int


def rows_of(report: TrialReport) -> Iterator[SellerRow]:
    """Yield a row for each way in which sellers behaved."""
    for seller in sorted({each.seller for each in report.orders}):
        its = [each for each in report.orders if each.seller == seller]
        yield SellerRow(
            seller=seller,
            purchases=len(its),
            asked=sum(each.asked for each in its),
            served=sum(each.result == "served" for each in its),
            refused=sum(each.result == "refused" for each in its),
            settled=sum(each.landed > 0 for each in its),
            twice=sum(each.landed > 1 for each in its),
        )


def verdict_of(report: TrialReport) -> str:
    """Return the verdict as a sentence."""
    if report.first_wrong is not None:
        wrong = next(each for each in report.orders if each.order == report.first_wrong)
        return f"FAILED: {wrong.order} was {wrong.payments} (seed {report.seed})."
    if report.stray_usdc:
        return f"FAILED: {report.stray_usdc} USDC were paid for no order (seed {report.seed})."
    if report.reasons:
        return f"FAILED: {', '.join(report.reasons)} (seed {report.seed})."
    if 0 < report.paid < report.least_paid:
        return (
            f"NOT PASSED: {report.paid} orders were paid, and fewer than {LEAST_PAID} prove little. Run it "
            f"longer, with --for (seed {report.seed})."
        )
    if not report.has_passed:
        silence = "" if any(each.result for each in report.orders) else " The payer wrote no result."
        return f"FAILED: nothing was paid, so nothing was proved (seed {report.seed}).{silence}"
    return f"passed (seed {report.seed})"


def lines_of_trial(report: TrialReport) -> Iterator[str]:
    """Yield a report as lines."""
    asked = sum(each.asked for each in report.orders)
    yield (
        f"{len(report.orders)} orders by {_protocols(report)}, asked {asked} times, {report.paid} paid, "
        f"{sum(1 for each in report.orders if each.is_wrong)} paid twice or too much; "
        f"the payer was killed {report.kills} times in {report.seconds} s"
    )
    for each in report.orders:
        if each.is_wrong:
            yield f"  {each.order}: {each.payments}. {each.story}"
    if report.shortest is not None:
        yield f"The shortest run found that fails: {report.shortest.story}"
        for moment in collapsed(report.shortest.timeline):
            yield f"  {moment.seconds:8.3f} s  {moment.what}"
    books = report.reconciliation
    if books is not None:
        yield f"{books.settled_usdc} USDC paid, limit {books.cap_usdc} USDC, {books.over_cap_usdc} over it"
        yield (
            f"servers were killed {books.server_kills} times; {books.undecided} payments undecided, "
            f"{len(books.differences)} differences between chain and books"
        )
        yield from (f"  {difference}" for difference in books.differences)
    if report.last_lines:
        yield "The payer has ended without being killed. Its last lines on standard error:"
        yield from (f"  {line}" for line in report.last_lines)
    yield verdict_of(report)


def page_of(report: TrialReport) -> str:
    """Return a report as an HTML page that needs no other file."""
    rows = "".join(
        f"<tr{' class=wrong' if each.is_wrong else ''}><td><code>{escape(each.order)}</code></td>"
        f"<td>{each.protocol}</td><td>{escape(each.story)}</td><td>{each.asked}</td><td>{escape(each.result)}</td>"
        f"<td>{each.landed}</td><td>{each.paid_usdc}</td></tr>"
        for each in report.orders
    )
    failures = "".join(_failure(each, each.order) for each in report.orders if each.is_wrong)
    if report.shortest is not None:
        failures = _failure(report.shortest, "The shortest run found that fails") + failures
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><title>Crash test</title>"
        f"<style>{_STYLE}</style><h1>{escape(verdict_of(report))}</h1>"
        f"<p>Orders by {_protocols(report)}. "
        f"The payer was killed {report.kills} times in {report.seconds} s.</p>"
        "<table><tr><th>Order<th>Protocol<th>What went wrong<th>Asked<th>Result<th>Landed<th>USDC</tr>"
        f"{rows}</table>{failures}</html>\n"
    )


def _failure(bought: Bought, title: str) -> str:
    moments = "".join(
        f"<tr><td>{moment.seconds:.3f} s</td><td>{escape(moment.what)}</td></tr>"
        for moment in collapsed(bought.timeline)
    )
    said = escape(f"{bought.story} It was {bought.payments}.")
    return f"<h2>{escape(title)}</h2><p>{said}</p><table>{moments}</table>"


def _protocols(report: TrialReport) -> str:
    return " and ".join(report.protocols)
