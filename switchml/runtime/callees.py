"""Compilation of kernels that are called only by other kernels: to LLVM bitcode, without machine code.

numba generates machine code for every function, and again in each kernel that calls it, since the optimizer needs both
for inlining. For functions that Python can't call, their own machine code is never run, and took a sixth of a loop's
compile time. Here a callee ends as optimized bitcode, which is also what its disk cache contains. Unoptimized callees
would compile even faster (by a quarter in total), but then the aggregator's additions are no longer vectorized
separately, and an all-reduce takes 1.16 times as long.
"""

from typing import Any

from llvmlite import binding
from numba import _dynfunc  # type: ignore[attr-defined]  # compiled
from numba.core import caching, codegen, compiler, typed_passes
from numba.core.compiler_machinery import register_pass

_Library: Any = codegen.JITCodeLibrary
_Lowering: Any = typed_passes.NativeLowering
_Compiler: Any = compiler.Compiler
_CacheImpl: Any = caching.CompileResultCacheImpl


def _entry(description: Any, environment: Any, library: Any) -> Any:
    """Return the key under which numba looks up a compiled function: the function that Python would call, here without
    an address."""
    module, name = description.lookup_module(), description.qualname.rpartition(".")[2]
    return _dynfunc.make_function(module, name, "a callee of other kernels", 0, environment, (library,))


class CalleeLibrary(_Library):
    """A library to link into others, without machine code."""

    def finalize(self) -> None:
        self._raise_if_finalized()
        for library in dict.fromkeys(self._linking_libraries):
            self._reload_init.update(library._reload_init)
            self._final_module.link_in(library._get_module_for_linking(), preserve=True)
        self._optimize_final_module()  # separately: loops are vectorized before they are inlined
        self._finalize_dynamic_globals()
        self._finalized = True

    def serialize_using_object_code(self) -> Any:
        return self.serialize_using_bitcode()

    @classmethod
    def load(cls, codegen: Any, serialized: Any) -> "CalleeLibrary":
        """Return a library from the result of `serialize_using_bitcode`."""
        name, _, bitcode = serialized
        library = cls(codegen, name)
        library._final_module = binding.parse_bitcode(bitcode)
        library._finalize_dynamic_globals()
        library._finalized = True
        return library


@register_pass(mutates_CFG=True, analysis_only=False)
class _CalleeLowering(_Lowering):
    _name = "callee_lowering"

    def run_pass(self, state: Any) -> bool:
        state.library = CalleeLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        state.flags.no_compile = True
        super().run_pass(state)
        state.library._ensure_finalized()
        state.reload_init.extend(state.library._reload_init)
        entry = _entry(state.cr.fndesc, state.cr.env, state.library)
        state.targetctx.insert_user_function(entry, state.cr.fndesc, [state.library])
        state["cr"] = state.cr._replace(cfunc=entry)
        return True


class CalleeCompiler(_Compiler):
    """numba's pipeline with its last pass, which generates machine code, replaced."""

    def define_pipelines(self) -> list[Any]:
        pipelines = super().define_pipelines()
        for pipeline in pipelines:
            pipeline.passes = [
                (_CalleeLowering if each is typed_passes.NativeLowering else each, why) for each, why in pipeline.passes
            ]
            pipeline._finalized = False
            pipeline.finalize()
        return list(pipelines)


class CalleeCacheImpl(_CacheImpl):
    """Reads numba's cache entry of a callee."""

    def rebuild(self, target_context: Any, payload: Any) -> Any:
        libdata, fndesc, env, signature, objectmode, lifted, annotation, reload_init, referenced_envs = payload
        for function in reload_init:
            function()
        library = CalleeLibrary.load(target_context.codegen(), libdata)
        result: Any = compiler.CompileResult
        return result(
            target_context=target_context,
            typing_context=target_context.typing_context,
            library=library,
            environment=env,
            entry_point=_entry(fndesc, env, library),
            fndesc=fndesc,
            type_annotation=annotation,
            signature=signature,
            objectmode=objectmode,
            lifted=lifted,
            typing_error=None,
            call_helper=None,
            metadata=None,
            reload_init=reload_init,
            referenced_envs=referenced_envs,
        )
