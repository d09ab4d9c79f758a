"""A griffe extension for the reference: a signature shows the value of a default, not the name of a constant.

`timeout: float | None = DEFAULT_TIMEOUT` is shown as `timeout: float | None = 30.0`, if the constant is a
literal. An attribute that `__init__` sets from a parameter of the same name has the type of that parameter.
"""

import ast
from typing import Any

import griffe


class ValuesInSignatures(griffe.Extension):
    """Replaces defaults that name a constant of a module by the constant's value."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:  # noqa: ANN401 - as its base has it
        """Go through a package once all of its modules are loaded."""
        self._visit(pkg)

    def _visit(self, owner: griffe.Module | griffe.Class) -> None:
        for member in owner.members.values():
            if member.is_alias:
                continue
            if isinstance(member, (griffe.Module, griffe.Class)):
                self._visit(member)
                if isinstance(member, griffe.Class):
                    _type_attributes(member)
            elif isinstance(member, griffe.Function):
                for parameter in member.parameters:
                    if isinstance(parameter.default, griffe.ExprName):
                        parameter.default = _value(member, parameter.default)


def _type_attributes(owner: griffe.Class) -> None:
    """Give attributes without an annotation that of the parameter that they are set from."""
    initializer = owner.members.get("__init__")
    if not isinstance(initializer, griffe.Function):
        return
    for name, member in owner.members.items():
        if (
            isinstance(member, griffe.Attribute)
            and member.annotation is None
            and name in initializer.parameters
        ):
            member.annotation = initializer.parameters[name].annotation


def _value(function: griffe.Function, name: griffe.ExprName) -> str | griffe.Expr:
    """Return the literal value of a name, or the name itself."""
    try:
        constant = function.modules_collection[name.canonical_path]
        constant = constant.final_target if isinstance(constant, griffe.Alias) else constant
        value = str(constant.value)
        ast.literal_eval(value)
    except (KeyError, AttributeError, ValueError, SyntaxError, griffe.GriffeError):
        return name
    return value
