"""`switchml ui`: who may see it, what it answers, and that a browser shows it."""

import contextlib
import http.client
import json
import shlex
import socket
import struct
import threading

import numpy as np
import pytest
from click.testing import CliRunner

from emulator.surface.api.emulating import emulate
from emulator.surface.cli.emulate import emulate as command
from emulator.surface.ui import controls, handlers
from switchml.cli.main import cli
from switchml.errors import ConfigError
from tests.support.agents import reduce_all
from tests.support.launch import LocalAggregator, join_all, leave_all

pytest.importorskip("jinja2", reason="needs jinja2 (pip install 'switchml[report]')")
pytest.importorskip("vl_convert", reason="needs vl-convert (pip install 'switchml[report]')")
TOKEN = "a token of twenty characters"
JOB = {"model": "resnet50", "cluster": "a100-dgx", "gpus": "8", "micro_batch": "32"}
NOBODY = "127.0.0.1:9"


@pytest.fixture(scope="module")
def server():
    from emulator.surface.ui.server import Server

    with Server("127.0.0.1", 0, TOKEN.replace(" ", "-"), NOBODY) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.shutdown()


def ask(server, method, path, body=None, cookie="", kind="application/json"):
    """(status, headers, text)."""
    link = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=120)
    headers = {"Cookie": f"{server.cookie}={cookie}"} if cookie else {}
    link.request(method, path, body, headers | ({"Content-Type": kind} if body is not None else {}))
    reply = link.getresponse()
    text = reply.read().decode()
    link.close()
    return reply.status, reply.headers, text


# Who may see it


def test_nothing_without_the_token(server):
    for method, path, body in (("GET", "/", None), ("POST", "/status", "{}"), ("POST", "/emulate", "{}")):
        for cookie in ("", "wrong", server.token[:-1], 'a";b\\'):
            assert ask(server, method, path, body, cookie)[0] == 403
    assert ask(server, "GET", "/?token=wrong")[0] == 403


def test_the_token_becomes_a_cookie_and_leaves_the_address(server):
    status, headers, _ = ask(server, "GET", f"/?token={server.token}")
    assert (status, headers["Location"]) == (303, "/")
    assert "HttpOnly" in headers["Set-Cookie"] and "SameSite=Strict" in headers["Set-Cookie"]
    status, headers, page = ask(server, "GET", "/", cookie=server.token)
    assert status == 200 and "Tensor parallel" in page and server.token not in page
    assert headers["Cache-Control"] == "no-store" and headers["X-Frame-Options"] == "DENY"


@pytest.mark.parametrize(("path", "body", "kind", "status"), [
    ("/emulate", "[]", "application/json", 400), ("/emulate", "{", "application/json", 400),
    ("/emulate", "[" * 60_000, "application/json", 400), ("/emulate", "{}", "text/plain", 415),
    ("/emulate", "x" * 70_000, "application/json", 413), ("/nothing", "{}", "application/json", 404),
])  # fmt: skip
def test_nonsense_is_refused(server, path, body, kind, status):
    found, _, text = ask(server, "POST", path, body, server.token, kind)
    assert found == status and json.loads(text)["error"]


@pytest.mark.parametrize("options", [
    {"model": "os:system"}, {"model": "/etc/passwd"}, {"model": "resnet50", "cluster": "../x.toml"},
    {"nccl_tables": "/etc"}, {"model": "resnet50", "gpus": "1e9"}, {"model": "resnet50", "split": "all"},
    {"model": "resnet50", "steps": "1" * 41}, {"model": "resnet50", "gpus": "<b>"},
])  # fmt: skip
def test_only_names_and_numbers_can_be_chosen(server, options):
    status, _, text = ask(server, "POST", "/emulate", json.dumps({"options": options}), server.token)
    assert status == 400 and "<" not in text


# What it answers


def test_answer_is_what_the_command_says():
    found = handlers.emulate({"options": JOB})
    words = shlex.split(found["command"])
    assert words[:2] == ["switchml", "emulate"]
    said = json.loads(CliRunner().invoke(command, [*words[2:], "--json"]).stdout)
    assert said["iteration_s"] == emulate(model="resnet50", cluster="a100-dgx", gpus=8, micro_batch=32).iteration_s
    assert sum(value["value"] for value in found["breakdown"]["data"]["values"] if value["row"] == "all ranks") == (
        pytest.approx(said["iteration_s"])
    )


def test_every_control_is_an_option_and_every_default_fits():
    known = {name for parameter in command.params for name in parameter.opts}
    assert {f"--{one.name.replace('_', '-')}" for one in controls.controls()} <= known
    assert handlers.emulate({"options": {one.name: one.default for one in controls.controls()}})["tiles"]


def test_all_splits_are_searched_and_the_fastest_shown():
    found = handlers.emulate({"options": JOB | {"model": "gpt3-1.3b", "micro_batch": "", "split": "auto"}})
    assert found["splits"]["columns"][:3] == ["tp", "pp", "dp"] and len(found["splits"]["rows"]) == 10
    assert found["command"].endswith("--split auto")


def test_the_run_is_played_with_failures_and_has_a_price():
    options = JOB | {"steps": "1e5", "mtbf_hours": "5000", "stragglers": "0.25", "slowness": "2"}
    found = handlers.emulate({"options": options})
    assert {"an hour", "cost", "goodput"} <= {name for name, _ in found["tiles"]}
    assert found["command"].endswith("--steps 100000 --mtbf-hours 5000 --stragglers 0.25 --slowness 2")


def test_sweeps():
    found = handlers.sweep({"options": JOB, "sweep": {"gpus": "8,16", "allreduce": "ring,switchml"}})
    assert [row[:2] for row in found["table"]["rows"]] == [
        ["8", "ring"], ["8", "switchml"], ["16", "ring"], ["16", "switchml"],
    ]  # fmt: skip
    assert found["command"].endswith("--sweep gpus=8,16 --sweep allreduce=ring,switchml")
    assert len(found["charts"]) == 2
    for texts, message in (({"gpus": "1:100:1"}, "more than 64"), ({"model": "os-x"}, "unknown"), ({}, "nothing")):
        with pytest.raises(ConfigError, match=message):
            handlers.sweep({"options": JOB, "sweep": texts})


def test_command_refuses_a_short_token_and_a_taken_port(server):
    for arguments, message in (
        (["--token", "short"], "expected at least 16"),
        (["--port", str(server.server_port)], "can't serve on 127.0.0.1"),
        (["--host", "no such host"], "can't serve on"),
    ):
        said = CliRunner().invoke(cli, ["ui", *arguments])
        assert said.exit_code == 1 and message in said.output


# In a browser


@pytest.mark.slow
@pytest.mark.needs("chromium", "chromedriver")
@pytest.mark.parametrize("width", [1280, 400])
def test_browser(server, browser, width):
    """Controls change figures, charts and the command; errors are shown; the console has nothing to say."""
    job = "&".join(f"{name}={value}" for name, value in {**JOB, "batch": ""}.items())
    browser.open(f"http://127.0.0.1:{server.server_port}/?token={server.token}#{job}&recompute=none", width)
    answered = "return document.querySelector('#job').dataset.answered > {} && document.querySelector('#job').innerText"
    text = browser.wait(answered.format(0))
    assert "--model resnet50 --cluster a100-dgx --gpus 8" in text
    assert browser.fits() and all(chart["outside"] == chart["touching"] == 0 for chart in browser.charts())
    browser.type("[name=gpus]", "16")
    assert "--gpus 16" in browser.wait(answered.format(1))
    browser.type("[name=tp]", "3")
    browser.wait("return document.querySelector('#job [role=alert]').textContent.includes('evenly')")
    assert browser.run("return document.querySelector('#job .shown').classList.contains('busy')")
    assert browser.run("return document.querySelector('#job .command').hidden"), "there is nothing to copy"
    browser.type("[name=tp]", "")
    browser.wait("return !document.querySelector('#job [role=alert]').textContent")
    browser.type("#axes [name=values]", "8,16")
    browser.click("[data-tab=sweep]")
    browser.wait("return document.querySelector('#sweep').dataset.answered")
    assert browser.run("return document.querySelectorAll('#sweep figure[data-drawn]').length") == 2
    assert browser.run("return document.querySelectorAll('#sweep tr').length") == 5
    assert browser.fits()
    assert [one for one in browser.problems() if "400 (Bad Request)" not in one] == []
    browser.click("[data-tab=status]")
    browser.wait("return document.querySelector('#status [role=alert]').textContent.includes('127.0.0.1:9')")


@pytest.mark.slow
@pytest.mark.needs("chromium", "chromedriver")
def test_browser_follows_a_running_aggregator(browser):
    """Jobs of a live aggregator appear, their counters move, and they are said to have ended, without a reload."""
    from emulator.surface.ui.server import Server

    with contextlib.ExitStack() as stack:
        aggregator = LocalAggregator()
        stack.callback(aggregator.stop)
        running = stack.enter_context(Server("127.0.0.1", 0, TOKEN.replace(" ", "-"), aggregator.address))
        threading.Thread(target=running.serve_forever, daemon=True).start()
        stack.callback(running.shutdown)
        browser.open(f"http://127.0.0.1:{running.server_port}/?token={running.token}", 400)
        browser.click("[data-tab=status]")
        browser.wait("return document.querySelector('#status').dataset.answered")
        shown = "return document.querySelector('#status .shown').innerText"
        agents = join_all(aggregator.address, 2, job="<b>resnet</b>")
        agents += join_all(aggregator.address, 2, job="private", secret="of a few words")
        try:
            said = browser.wait(f"{shown}.includes('<b>resnet</b>') && {shown.removeprefix('return ')}")
            assert "ended" not in said and "private" not in said
            browser.type("#secret", "of a few words")
            browser.run("document.querySelector('#secret').form.requestSubmit()")
            browser.wait(f"{shown}.includes('private')")
            before = browser.run(shown)
            reduce_all(agents[:2], [np.ones(5000, np.float32)] * 2)
            browser.wait(f"{shown} !== {json.dumps(before)}")
            assert browser.fits() and browser.run("return !document.querySelector('#status b')")
        finally:
            leave_all(agents)
        browser.wait(f"{shown}.includes('ended')")
        assert browser.problems() == []
        browser.open("about:blank")  # asks no more


# What an answer may take


def test_numbers_without_end_are_refused_by_name(server):
    options = JOB | {"batch": "1000000000"}
    status, _, text = ask(server, "POST", "/emulate", json.dumps({"options": options}), server.token)
    assert status == 400 and "batch is 1000000000; expected 0 to 100,000,000" in json.loads(text)["error"]


def test_an_answer_has_a_budget_of_memory(monkeypatch):
    monkeypatch.setattr(handlers, "MEMORY_BYTES", 1e6)
    with pytest.raises(ConfigError, match="operations; playing them needs more than"):
        handlers.emulate({"options": {"model": "gpt3-13b", "gpus": "8", "pp": "8", "batch": "100000000"}})


def test_a_sweep_has_one_budget_of_time(monkeypatch):
    monkeypatch.setattr(handlers, "SECONDS", 0.0)
    rows = handlers.sweep({"options": JOB, "sweep": {"gpus": "8:512:2x"}})["table"]["rows"]
    assert len(rows) == 7 and all("this page limits a sweep to 0 s" in row[-1] for row in rows)


def test_who_waits_too_long_for_another_answer_is_told(server, monkeypatch):
    monkeypatch.setattr(handlers, "SECONDS", 0.01)
    with server.one_at_a_time:
        assert ask(server, "POST", "/emulate", json.dumps({"options": JOB}), server.token)[0] == 503
        assert ask(server, "GET", "/", cookie=server.token)[0] == 200


# Strangers


def test_bodies_of_strangers_are_not_read(server):
    with socket.create_connection(("127.0.0.1", server.server_port)) as link:
        link.sendall(b"POST /emulate HTTP/1.1\r\nHost: x\r\nContent-Length: 60000\r\n\r\n")
        assert link.recv(100).startswith(b"HTTP/1.1 403")  # though no body has come


def test_strangers_leave_nothing_in_the_log(server, capfd):
    requests = [
        b"POST /emulate HTTP/1.1\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
        b"POST /emulate HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST /emulate HTTP/1.1\r\nContent-Length: 100\r\n\r\n",
        b"GET / HTTP/1.1\r\nCookie: " + b"x" * 60000 + b"\r\n\r\n",
        b"GET " + b"/" * 70000 + b" HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01" * 100,
        b"GET / HTTP/1.1\r\n",
    ]
    for request in requests * 5:
        for resets in (False, True):
            with socket.create_connection(("127.0.0.1", server.server_port)) as link:
                if resets:
                    link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                link.sendall(request)
    assert ask(server, "GET", "/", cookie=server.token)[0] == 200
    assert capfd.readouterr().err == ""
