r"""What every test has: tests of compiled steps skip themselves where torch cannot compile."""

import functools

import hypothesis
import pytest
from torch._dynamo.exc import BackendCompilerFailed

hypothesis.settings.register_profile("limbeck", deadline=None)  # machines are busy at times
hypothesis.settings.load_profile("limbeck")


@functools.cache
def has_vector_instructions():
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    return bool(pick_vec_isa())


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem):
    # Without vector instructions (ATEN_CPU_CAPABILITY=default) some C++ code of torch's compiler
    # does not compile; limbeck warns then and runs eagerly, and warnings are errors here.
    try:
        return (yield)
    except (BackendCompilerFailed, UserWarning) as error:
        failed = isinstance(error, BackendCompilerFailed) or "cannot be compiled" in str(error)
        if failed and not has_vector_instructions():
            pytest.skip("torch's compiler needs vector instructions here")
        raise
