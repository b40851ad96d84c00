"""Logs of servers stay bounded, whatever strangers send."""

import logging

import pytest

from switchml import logs


class Log:
    """A logger with a limit, a clock by hand, and what came through."""

    def __init__(self, level: int) -> None:
        self.now_s = 0.0
        self.lines: list[str] = []
        self.logger = logging.Logger("a test's")
        self.logger.addFilter(logs.Limit(lambda: self.now_s))
        self.logger.addHandler(self)
        logging.getLogger("a test's").setLevel(level)

    level = logging.NOTSET

    def handle(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.fixture
def log() -> Log:
    return Log(logging.INFO)


def test_one_line_a_minute_for_a_client(log):
    for client in ("10.0.0.1", "10.0.0.2"):
        for number in range(100):
            refuse(log, client, number)
    log.now_s = 61.0
    refuse(log, "10.0.0.1", 100)
    refuse(log, "10.0.0.3", 0)
    assert log.lines == [
        "refused 0 of 10.0.0.1",
        "refused 0 of 10.0.0.2",
        "refused 100 of 10.0.0.1 (99 more like it were left out)",
        "refused 0 of 10.0.0.3",
    ]


def refuse(log: Log, client: str, number: int) -> None:
    log.logger.warning("refused %d of %s", number, client, extra=logs.about(client))


def test_many_clients_have_a_limit_together(log):
    for number in range(3 * logs.MOST):
        refuse(log, f"client {number}", 0)
    assert len(log.lines) == logs.MOST


def test_lines_about_nobody_have_a_limit(log):
    for minute in range(2):
        log.now_s = 61.0 * minute
        for number in range(1500):
            log.logger.info("%d joined", number)
    assert len(log.lines) == 2 * logs.MOST
    assert log.lines[logs.MOST] == "0 joined (500 more like it were left out)"


def test_a_traceback_comes_once_a_minute(log):
    for number in range(10):
        try:
            raise ValueError(number)
        except ValueError:
            log.logger.exception("%d failed", number)
    assert log.lines == ["0 failed"]


def test_a_log_of_level_debug_is_complete():
    log = Log(logging.DEBUG)
    for number in range(10):
        refuse(log, "10.0.0.1", number)
    assert len(log.lines) == 10
