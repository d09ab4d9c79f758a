"""A pytest marker: an async test is an agent, and is simulated on virtual time.

`@pytest.mark.agentpay_simulation(seeds=20, minutes=2)` on `async def test_my_agent(agentpay_world)`. The test
fails with a short story if an order was paid twice.
"""

import inspect

import pytest

MARKER = "agentpay_simulation"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"{MARKER}(seeds, minutes, orders, strength): run this async test as an agent in simulated worlds, "
        "with the arguments of agentpay_lab.simulation.simulate.",
    )


@pytest.fixture
def agentpay_world(request: pytest.FixtureRequest) -> None:
    """The world of a simulated agent: see `agentpay_lab.simulation.AgentWorld`."""
    if request.node.get_closest_marker(MARKER) is None:
        pytest.fail(f"agentpay_world needs @pytest.mark.{MARKER} on the test", pytrace=False)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a marked test once for each seed."""
    marker = pyfuncitem.get_closest_marker(MARKER)
    if marker is None:
        return None
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        pytest.fail(f"a test with @pytest.mark.{MARKER} must be async", pytrace=False)
    # Imported late: the plugin is loaded in every run of pytest.
    from agentpay_lab.simulation import AgentWorld, simulate  # noqa: PLC0415

    names = inspect.signature(pyfuncitem.obj).parameters
    given = {name: value for name, value in pyfuncitem.funcargs.items() if name in names}

    async def agent(world: AgentWorld) -> None:
        await pyfuncitem.obj(**{**given, "agentpay_world": world})

    result = simulate(agent, **marker.kwargs)
    try:
        result.check()
    except AssertionError as failure:
        pytest.fail(str(failure), pytrace=False)
    return True
