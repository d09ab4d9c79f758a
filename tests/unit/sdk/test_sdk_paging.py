"""Lists: pages that lead to one another, and an iteration that ends whatever the service says."""

import copy
import pickle

import httpx
import pytest
from sdk_world import ACCOUNT, KEY, URL, Script, answer, page

from agentpay import AsyncAgentPay, Session, errors, testing
from agentpay.resources import AsyncPage, Page

SESSION = testing.make(Session).to_dict()


def accounts(*names):
    return [{**ACCOUNT, "name": name} for name in names]


def three_pages():
    return (
        answer(200, page(accounts("a", "b"), "c1", has_more=True)),
        answer(200, page([], "c2", has_more=True)),
        answer(200, page(accounts("c"))),
    )


@pytest.mark.parametrize(
    ("call", "filters", "first"),
    [
        (lambda c, **given: c.accounts.list(**given), {}, {}),
        (lambda c, **given: c.accounts.list(**given), {"limit": 2, "status": "active"}, {"cursor": "c0"}),
        (lambda c, **given: c.sessions.list(**given), {"account_id": "acct_a", "status": "open"}, {}),
    ],
)
def test_iterating_reads_all_pages_with_the_same_filters(caller, call, filters, first):
    items = [ACCOUNT, ACCOUNT, ACCOUNT] if "account_id" not in filters else [SESSION] * 3
    script = caller.script(
        answer(200, page(items[:2], "c1", has_more=True)),
        answer(200, page([], "c2", has_more=True)),
        answer(200, page(items[2:])),
    )
    assert len(caller.items(lambda c: call(c, **filters, **first))) == 3
    expected = {name: str(value) for name, value in filters.items()}
    assert [dict(request.url.params) for request in script.requests] == [
        {**expected, **cursor} for cursor in (first, {"cursor": "c1"}, {"cursor": "c2"})
    ]


def test_pages_can_be_read_one_by_one(caller):
    caller.script(*three_pages())
    first = caller(lambda c: c.accounts.list())
    assert isinstance(first, AsyncPage if caller.is_async else Page)
    assert ([account.name for account in first.data], first.has_more, first.cursor) == (
        ["a", "b"],
        True,
        "c1",
    )
    second = caller(lambda _: first.next_page())
    third = caller(lambda _: second.next_page())
    assert (len(third.data), third.has_more) == (1, False)
    assert "of 1, has_more=False" in repr(third)
    with pytest.raises(RuntimeError, match="last page"):
        caller(lambda _: third.next_page())


def test_a_page_can_be_iterated_again_from_its_position(caller):
    caller.script(*three_pages(), *three_pages()[1:])
    first = caller(lambda c: c.accounts.list())
    for _ in range(2):
        assert [account.name for account in caller.items(lambda _: first)] == ["a", "b", "c"]


CYCLES = {
    "nowhere": [""],
    "itself": ["c1"],
    "two": ["c1", "c2"],
    "three": ["c1", "c2", "c3"],
    "after a while": ["c1", "c2", "c3", "c4", "c3"],
    "back to the start": ["c1", "c2", "c0"],
}


@pytest.mark.parametrize("cursors", CYCLES.values(), ids=CYCLES)
def test_circular_cursors_raise_a_decoding_error(caller, cursors):
    """The list would never end: each page says that there is another one."""

    def turn_all():
        turned = caller(lambda c: c.accounts.list(cursor="c0"))
        while turned.has_more:
            turned = caller(lambda _, at=turned: at.next_page())

    for read in (lambda: caller.items(lambda c: c.accounts.list(cursor="c0")), turn_all):
        script = caller.script(
            *(answer(200, page(accounts("a"), cursors[n % len(cursors)], has_more=True)) for n in range(10))
        )
        with pytest.raises(errors.ResponseValidationError, match="leads back to a page that was read"):
            read()
        sent = [dict(request.url.params).get("cursor", "") for request in script.requests]
        assert sent == ["c0", *dict.fromkeys(cursor for cursor in cursors if cursor not in ("", "c0"))]


@pytest.mark.anyio
async def test_an_async_list_is_awaited_or_iterated_over():
    script = Script(*three_pages(), *three_pages())
    async with AsyncAgentPay(api_key=KEY, base_url=URL, transport=script) as client:
        listing = client.accounts.list()
        assert not script.requests, "nothing is sent before it is awaited"
        first = await listing
        assert [account.name async for account in first] == ["a", "b", "c"]
        assert [account.name async for account in client.accounts.list()] == ["a", "b", "c"]


def test_each_page_is_retried_separately_until_an_error_is_raised(caller):
    pages = three_pages()
    script = caller.script(pages[0], httpx.ReadTimeout(""), pages[1], answer(503), pages[2])
    assert len(caller.items(lambda c: c.accounts.list())) == 3
    assert len(script.requests) == 5
    caller.script(three_pages()[0], answer(404))
    with pytest.raises(errors.NotFoundError):
        caller.items(lambda c: c.accounts.list())


def test_iter_pages_reads_pages_when_they_are_needed(caller):
    script = caller.script(*three_pages())
    sent = []

    async def gather(listing):
        pages = []
        async for each in listing.iter_pages():
            sent.append(len(script.requests))
            pages.append(each)
        return pages

    listing = caller.client.accounts.list()
    if caller.is_async:
        pages = caller.run(gather, listing)
    else:
        pages = []
        for each in listing.iter_pages():
            sent.append(len(script.requests))
            pages.append(each)
    assert [[account.name for account in each.data] for each in pages] == [["a", "b"], [], ["c"]]
    assert sent == [1, 2, 3]


def test_a_page_is_truthy_if_the_list_is_not_empty_and_has_no_length(caller):
    for body, truth in (
        (page([]), False),
        (page(accounts("a")), True),
        (page([], "c1", has_more=True), True),
    ):
        caller.script(answer(200, body))
        found = caller(lambda c: c.accounts.list())
        assert bool(found) is truth
        with pytest.raises(TypeError, match="has no len"):
            len(found)


def test_an_async_list_that_is_not_awaited_has_no_truth_value():
    client = AsyncAgentPay(api_key=KEY, base_url=URL)
    with pytest.raises(TypeError, match="nothing was fetched yet: write `if await client"):
        bool(client.accounts.list())


AGAIN = [copy.copy, copy.deepcopy, lambda page: pickle.loads(pickle.dumps(page))]


@pytest.mark.parametrize("again", AGAIN)
def test_a_pickled_page_keeps_its_data_and_explains_how_to_continue(caller, again):
    script = caller.script(*three_pages())
    first = caller(lambda c: c.accounts.list())
    pickled = again(first)
    assert (pickled.data, pickled.cursor, pickled.has_more) == (first.data, "c1", True)
    with pytest.raises(
        RuntimeError, match=r"has no client: call the list method again with cursor=page\.cursor"
    ):
        caller(lambda _: pickled.next_page())
    assert KEY.encode() not in pickle.dumps(first)
    assert caller(lambda c: c.accounts.list(cursor=pickled.cursor)).cursor == "c2"
    assert script.requests[1].url.query == b"cursor=c1"
