"""Mocks of the clients for `agentpay.testing`, whose methods check the arguments of each call.

`create_autospec` alone checks nothing: it sees no resources in the class of a client, and `**options` accepts
every keyword.
"""

import inspect
from collections.abc import Callable
from typing import Any
from unittest.mock import NonCallableMagicMock, create_autospec

from agentpay._calls.options import CallOptions


def mock_of(kind: type) -> Any:  # noqa: ANN401 - a mock
    """Return a mock of a client of this class."""
    # Nothing is sent: its methods are only looked at.
    mock = _mock(kind(api_key="ap_operator_testing", base_url="https://agentpay.invalid"))
    enter = mock.__aenter__ if hasattr(kind, "__aenter__") else mock.__enter__
    enter.return_value = mock.with_options.return_value = mock
    return mock


def _mock(real: object) -> Any:  # noqa: ANN401 - as above
    mock = NonCallableMagicMock(spec=real, name=type(real).__name__)
    for name in dir(real):
        if name.startswith("_"):
            continue
        value = getattr(real, name)
        if inspect.ismethod(value):
            setattr(mock, name, create_autospec(_checked(value)))
        elif hasattr(value, "_caller"):
            setattr(mock, name, _mock(value))
        else:
            setattr(mock, name, value)
    return mock


def _checked(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of the method's kind and signature, with the options of a call spelled out."""
    signature = inspect.signature(method)
    parameters = list(signature.parameters.values())
    if parameters and parameters[-1].kind is inspect.Parameter.VAR_KEYWORD:
        named = {each.name for each in parameters}
        parameters[-1:] = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None)
            for name in CallOptions.__annotations__
            if name not in named
        ]

    async def asynchronous(*_args: object, **_given: object) -> None: ...

    def synchronous(*_args: object, **_given: object) -> None: ...

    function: Any = asynchronous if inspect.iscoroutinefunction(method) else synchronous
    function.__signature__ = signature.replace(parameters=parameters)
    function.__name__, function.__doc__ = method.__name__, method.__doc__
    return function  # type: ignore[no-any-return]
