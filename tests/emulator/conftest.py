from __future__ import annotations

import ssl
from functools import cache

import pytest
from openai_batch_world import Customer
from raw_client import RawClient

from smartbatch.testing import emulator

_tls_context = cache(ssl.create_default_context)


@pytest.fixture(scope="module", autouse=True)
def one_tls_context():
    """Let the SDKs share a context they do not use: each client would read all certificates, 50 ms of CPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssl, "create_default_context", _tls_context)
        yield


@pytest.fixture
def emu():
    with emulator(hang_seconds=0.05) as running:
        yield running


@pytest.fixture
def raw(emu):
    with RawClient(emu.port) as client:
        yield client


@pytest.fixture
def customer(emu):
    with Customer(emu) as made:
        yield made
