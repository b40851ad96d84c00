"""Compilation of the packet path: its functions become kernels, and methods of the engine become kernels of the same
names with the address of the engine's plan as first argument."""

import ast
import inspect
from types import FunctionType, ModuleType
from typing import Any

from switchml.runtime.jit import kernel


class _MethodsToFunctions(ast.NodeTransformer):
    """Rewrites engine.NAME(…) to a call of the global "engine.NAME", a name that no local variable can hide, with the
    engine as first argument."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        match node.func:
            case ast.Attribute(value=ast.Name(id="engine") as engine, attr=name):
                node.func = ast.copy_location(ast.Name(f"engine.{name}", ast.Load()), node.func)
                node.args.insert(0, engine)
        return node


def compile_path(name: str, operations: list[ModuleType], path: list[ModuleType]) -> dict[str, Any]:
    """Compile the functions of the modules `path` to kernels, by name. The engine's methods are the kernels of
    `operations`, and these. `name`: the module that imports all of these, whose text is the key of the on-disk kernel
    cache (runtime.jit)."""
    kernels: dict[str, Any] = {}
    scopes = [_functions(name, module, kernels) for module in path]
    methods = {key: value for module in operations for key, value in vars(module).items() if hasattr(value, "py_func")}
    for scope in scopes:
        scope.update({f"engine.{key}": value for key, value in (methods | kernels).items()}, **kernels)
    return kernels


def _functions(name: str, module: ModuleType, kernels: dict[str, Any]) -> dict[str, Any]:
    """Add a module's functions to `kernels`; returns the module's global names."""
    tree = _MethodsToFunctions().visit(ast.parse(inspect.getsource(module)))
    scope: dict[str, Any] = {"__name__": name}
    exec(compile(ast.fix_missing_locations(tree), inspect.getfile(module), "exec"), scope)
    own = {key: value for key, value in scope.items() if isinstance(value, FunctionType) and value.__module__ == name}
    kernels.update({key: kernel(value) for key, value in own.items()})
    return scope
