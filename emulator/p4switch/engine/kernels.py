"""Compiles the packet path: its functions become kernels, and an engine's methods kernels of the same names, which get
the address of its plan."""

import ast
import inspect
from types import FunctionType, ModuleType
from typing import Any

from switchml.runtime.jit import kernel


class _MethodsToFunctions(ast.NodeTransformer):
    """engine.NAME(…) becomes a call of the global "engine.NAME", which no local variable hides, with the engine."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        match node.func:
            case ast.Attribute(value=ast.Name(id="engine") as engine, attr=name):
                node.func = ast.copy_location(ast.Name(f"engine.{name}", ast.Load()), node.func)
                node.args.insert(0, engine)
        return node


def compile_path(name: str, operations: list[ModuleType], path: list[ModuleType]) -> dict[str, Any]:
    """The functions of the modules `path` as kernels, by their names. The engine's methods are the kernels of
    `operations`, and these. `name`: the module that imports all of these, by whose text kernels are kept on disk
    (runtime.jit)."""
    kernels: dict[str, Any] = {}
    scopes = [_functions(name, module, kernels) for module in path]
    methods = {key: value for module in operations for key, value in vars(module).items() if hasattr(value, "py_func")}
    for scope in scopes:
        scope.update({f"engine.{key}": value for key, value in (methods | kernels).items()}, **kernels)
    return kernels


def _functions(name: str, module: ModuleType, kernels: dict[str, Any]) -> dict[str, Any]:
    """Add a module's functions to `kernels`; returns their global names."""
    tree = _MethodsToFunctions().visit(ast.parse(inspect.getsource(module)))
    scope: dict[str, Any] = {"__name__": name}
    exec(compile(ast.fix_missing_locations(tree), inspect.getfile(module), "exec"), scope)
    own = {key: value for key, value in scope.items() if isinstance(value, FunctionType) and value.__module__ == name}
    kernels.update({key: kernel(value) for key, value in own.items()})
    return scope
