r"""What every test has: short searches for modes; a skip where torch cannot compile steps."""

import functools
import gc

import hypothesis
import pytest
from torch._dynamo.exc import BackendCompilerFailed

from limbeck.compression import generators, training
from limbeck.normalization import mode_search

hypothesis.settings.register_profile("limbeck", deadline=None)  # machines are busy at times
hypothesis.settings.load_profile("limbeck")


RANDOM_NUMBERS = mode_search.RANDOM_NUMBERS


@pytest.fixture(autouse=True, scope="session")
def few_random_events():
    r"""Look for modes among 2²⁰ random numbers; 2²⁴ take nine tenths of a small estimate's time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mode_search, "RANDOM_NUMBERS", 2**20)
        yield


@pytest.fixture
def all_random_events(monkeypatch):
    r"""Search as users do, in tests of the search itself."""
    monkeypatch.setattr(mode_search, "RANDOM_NUMBERS", RANDOM_NUMBERS)


@pytest.fixture
def quick_baselines(monkeypatch):
    r"""Networks without `steps=` take 20 steps, as do those that reports train on labels alone."""
    monkeypatch.setattr(training, "default_steps", lambda *_: 20)


@pytest.fixture
def quick_flows(monkeypatch):
    r"""Flows that `compress` tries as inputs take 20 steps."""
    monkeypatch.setattr(generators, "FLOW_STEPS", 20)


def pytest_collection_finish():
    gc.collect()
    gc.freeze()  # modules and tests stay, and need not be looked at again and again


def pytest_unconfigure():
    gc.unfreeze()


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
