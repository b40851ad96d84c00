"""What a stranger reads in torch's store, and what comes of what he writes there: ranks are threads of this process."""

import json
import pickle
import random
import re
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

pytest.importorskip("torch")

from torch.distributed import HashStore, PrefixStore, TCPStore

from host_agent.pytorch import rendezvous as module
from host_agent.pytorch.rendezvous import Rendezvous, ToldByAnother
from host_agent.pytorch.store import LONGEST, Part, host_of, own_part
from switchml.control import client
from switchml.control.secret import given_secret, is_beyond_loopback
from switchml.errors import ConfigError, JoinError
from tests.support.evil import Evil

SECRET = "a secret of some length"
ADDRESS = "127.0.0.1:1"
SHORT, PATIENCE = timedelta(seconds=0.05), timedelta(seconds=30)


@pytest.fixture(autouse=True)
def with_an_aggregator(monkeypatch):
    """Nobody asks whether it is there."""
    for name in ("SWITCHML_SECRET", "SWITCHML_SECRET_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SWITCHML_AGGREGATOR", ADDRESS)
    monkeypatch.setattr(client, "wait_for", lambda *args, **options: None)


def on_both(call, timeout_s=30):
    """What `call(rank)` returns or raises on each of two ranks."""

    def outcome(rank):
        try:
            return call(rank)
        except JoinError as error:
            return error

    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(outcome, range(2), timeout=timeout_s))


def meet(store, secrets=(SECRET, SECRET), name="group"):
    def work(rank):
        client_of_its_own = store
        if isinstance(store, TCPStore):
            client_of_its_own = TCPStore("127.0.0.1", store.port, is_master=False, timeout=PATIENCE)
        part = own_part(PrefixStore(name, client_of_its_own), rank, 2, PATIENCE, secrets[rank])
        rendezvous = Rendezvous(part.under("switchml"), rank, 2, "group", PATIENCE, secret=secrets[rank])
        rendezvous.prepare()
        return rendezvous.meet()

    return on_both(work)


@pytest.fixture
def server():
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=PATIENCE)


def everything(server):
    """All that a stranger reads there, keys and values."""
    stranger = TCPStore("127.0.0.1", server.port, is_master=False, timeout=timedelta(seconds=2))
    if not hasattr(stranger, "list_keys"):
        pytest.skip("this torch does not list a store's keys")
    found = {key: bytes(stranger.get(key)) for key in stranger.list_keys() if "init/" not in key}
    assert any("invitation" in key for key in found)
    return repr(found)


def test_a_secret_that_the_ranks_have_is_not_in_the_store(server):
    zero, one = meet(server)
    assert zero == one and one.secret == SECRET
    seen = everything(server)
    assert SECRET not in seen and ADDRESS in seen


def test_a_secret_that_rank_0_draws_is_and_the_log_says_so(server, caplog, monkeypatch):
    zero, one = meet(server, ("", ""))
    assert zero == one and len(zero.secret) == 32 and zero.secret in everything(server)
    assert not caplog.records  # on loopback
    monkeypatch.setattr(module, "host_of", lambda store: "10.0.0.1")
    zero, _ = meet(server, ("", ""), "other")
    (record,) = caplog.records
    assert record.getMessage().startswith(f"job '{zero.job}': its secret lies in torch's store at 10.0.0.1")


def test_where_a_store_is(server):
    assert host_of(Part(PrefixStore("a", PrefixStore("b", server)), "part")) == "127.0.0.1"
    assert host_of(HashStore()) == ""
    assert [is_beyond_loopback(host) for host in ("localhost", "127.0.0.9", "::1", "10.0.0.1")] == [False] * 3 + [True]


@pytest.mark.parametrize(("secrets", "said"), [
    ((SECRET, "other"), "rank 0 has another secret: give all ranks the same SWITCHML_SECRET"),
    ((SECRET, ""), "rank 0 has a secret, the other has none"),
    (("", SECRET), "this rank has a secret, the other has none"),
])  # fmt: skip
def test_ranks_with_different_secrets_both_hear_it(secrets, said):
    zero, one = meet(HashStore(), secrets)
    assert re.match("rank 1 has another secret than this rank, or none: give all ranks the same", str(zero))
    assert said in str(one)


def test_a_part_has_what_its_ranks_wrote_there():
    store = HashStore()
    part = Part(store, "part", b"key")
    part.set("a", b"\0value")
    part.set("b", b"\0value")
    assert part.get("a") == b"\0value" and part.unsealed().get("a").endswith(b"\0value")
    for key, name in ((b"other", "part"), (b"key", "old")):
        store.set(f"{name}/a", store.get("part/a"))
        with pytest.raises(JoinError, match="'a' in torch's store is not sealed with this rank's secret"):
            Part(store, name, key).get("a")
    store.set("part/a", store.get("part/b"))
    with pytest.raises(JoinError, match="not sealed"):
        part.get("a")


def test_an_aggregator_other_than_the_given_one_is_refused(monkeypatch):
    store = HashStore()
    store.set("invitation", json.dumps({"address": "10.6.6.6:1", "job": "torch", "secret": "mine"}))
    with pytest.raises(JoinError, match="rank 0 names '10.6.6.6:1' as the aggregator, and this rank was given"):
        Rendezvous(store, 1, 2, "group", SHORT).meet()
    monkeypatch.delenv("SWITCHML_AGGREGATOR")
    with pytest.raises(JoinError, match=re.escape(f"this rank was given {ADDRESS!r}")):
        Rendezvous(store, 1, 2, "sub-group", SHORT, ADDRESS).meet()


def values(source):
    """What a stranger may write, one of each kind."""
    word, number = source.randbytes(8).hex(), str(source.randrange(10**9))
    fields = {"address": ADDRESS, "job": "torch", "secret": "x"}
    yield from (b"", b"\0", number.encode(), pickle.dumps(Evil()), source.randbytes(source.randrange(1, 400)))
    yield from (b"x" * (8 << 20), b"x" * (LONGEST + 1), b"[" * LONGEST, b"9" * LONGEST)
    yield from (f"{word} {word}".encode(), f"{word} {word} {word}".encode(), f"refused {word}".encode(), b"refused ")
    for wrong in (None, 1, [], {}, "\ud800"):
        yield json.dumps(fields | {source.choice(list(fields)): wrong}).encode()
    yield json.dumps({source.choice(list(fields)): "x"}).encode()
    addresses = ("", ",", "a", "a:0", "standby=a:1", "\0:1", "a b:1", f"{'x' * 64}.org:1", "a..b:1", "a:٣", "a:1," * 99)
    for address in addresses:
        yield json.dumps(fields | {"address": address}).encode()
    yield json.dumps({"error": "\x1b[2J\n" + "x" * 5000}).encode()


@pytest.mark.parametrize("secret", ["", SECRET])
@pytest.mark.parametrize("key", ["invitation", "word", "part"])
def test_whatever_a_rank_reads_ends_in_one_error(monkeypatch, key, secret):
    monkeypatch.delenv("SWITCHML_AGGREGATOR")

    class Answering(HashStore):
        """As if rank 0 had answered with `value`."""

        value = b""

        def set(self, name, text):
            super().set(name, text)
            if name.startswith("word/"):
                super().set(f"part/{text}", self.value)

    for value in values(random.Random(key)):
        store = Answering()
        store.value = value
        with pytest.raises(JoinError) as raised:
            if key == "part":
                own_part(store, 1, 2, SHORT, secret)
            elif key == "word":
                store.set("word/1", value)
                own_part(store, 0, 2, SHORT, secret)
            else:
                part = Part(store, "part", b"key" if secret else b"")
                store.set("part/invitation", value)
                Rendezvous(part, 1, 2, "group", SHORT, secret=secret).meet()
        said = str(raised.value)
        assert said.isprintable() and len(said) < 2100, value[:80]
        if isinstance(raised.value, ToldByAnother):
            assert b"error" in value and not secret
    assert not Evil.unpickled


def test_a_secret_in_a_file(monkeypatch, tmp_path):
    path = tmp_path / "secret"
    monkeypatch.setenv("SWITCHML_SECRET_FILE", str(path))
    for content, mode, sentence in (
        (None, 0, "No such file"),
        ("secret", 0o640, "mode 640"),
        ("secret", 0o604, "mode 604"),
        (" \n", 0o600, "is empty"),
        ("x" * 5000, 0o600, "more than 4,096 bytes"),
    ):
        if content is not None:
            path.write_text(content)
            path.chmod(mode)
        with pytest.raises(ConfigError, match=f"SWITCHML_SECRET_FILE: .*{sentence}"):
            given_secret()
    path.write_text(f" {SECRET}\n")
    assert given_secret() == SECRET
    monkeypatch.setenv("SWITCHML_SECRET", "of the variable")
    assert given_secret() == "of the variable"
