"""Databases on PostgreSQL, as the tests of this folder use them."""

import pytest
import stores

from agentpay_server.plugins.postgres.database import PostgresDatabase


@pytest.fixture
async def url():
    made = await stores.fresh_url()
    yield made
    stores.run.free.append(made)


@pytest.fixture
async def other(url):
    made = PostgresDatabase(url)
    yield made
    await made.close()


@pytest.fixture
async def holder(url):
    """A connection in addition to those of the databases."""
    made = await stores.connect(url)
    yield made
    await made.close()
