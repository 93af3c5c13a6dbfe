"""A real server process, asked over real sockets."""

import contextlib
import http.client
import json
import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from daskxml.cli.main import main
from daskxml.data.settings import TextSettings
from daskxml.data.text import Vectorizer
from daskxml.models.trained import Model
from harness.commands import Command
from harness.small_models import random_network
from harness.watched_run import until

FEATURES, LABELS = 40, 30
NAMES = {
    "feature_names": tuple(f"word {i}" for i in range(FEATURES)),
    "label_names": tuple(f"tag {i}" for i in range(LABELS)),
}


def model_of(seed: int) -> Model:
    return random_network(seed, header=NAMES, features=FEATURES, labels=LABELS, hidden=(8,))


class Served:
    """A server under way, and the model that it has been given."""

    def __init__(self, command: Command, directory: Path) -> None:
        self.command, self.directory, self.model = command, directory, Model.load(directory)
        command.wait_for("answering at ")
        self.port = int(command.lines[-1].split("/predict")[0].rpartition(":")[2])

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)

    def ask(self, path: str, body: Any = None, connection: Any = None) -> tuple[int, Any]:
        """Return the status and the JSON of an answer."""
        held = connection or self.connect()
        text = body if isinstance(body, bytes | type(None)) else json.dumps(body).encode()
        method = "GET" if body is None else "POST"
        held.request(method, path, text, {"content-type": "application/json"})
        answer = held.getresponse()
        read = answer.read()
        if connection is None:
            held.close()
        is_json = "json" in answer.headers.get("content-type", "")
        return answer.status, json.loads(read) if is_json else read.decode()


@contextlib.contextmanager
def serving(model: Model, directory: Path, *options: object) -> Iterator[Served]:
    """Serve a model, which ends well when it is told to."""
    model.save(directory)
    with Command("serve", directory, "--port", 0, *options) as command:
        yield Served(command, directory)
        os.kill(command.pid, signal.SIGTERM)
        status, _, errors = command.end()
    assert (status, "Traceback" in errors) == (0, False), errors


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    limits = ("--request-bytes", 100_000, "--request-rows", 50, "--request-seconds", 1)
    with serving(model_of(0), tmp_path_factory.mktemp("served") / "model", *limits) as server:
        yield server


def rows_of(count: int, seed: int = 1) -> sp.csr_matrix:
    rows = sp.random(count, FEATURES, 0.2, "lil", rng=np.random.default_rng(seed))
    rows[:, 3] = 1.0  # none is empty
    return sp.csr_matrix(rows, dtype=np.float32)


def query_of(rows: sp.csr_matrix, by: str = "ids", **others: Any) -> dict[str, Any]:
    named = NAMES["feature_names"]
    return {
        "rows": [
            {
                by: [int(i) if by == "ids" else named[i] for i in row.indices],
                "values": row.data.tolist(),
            }
            for row in rows
        ],
        **others,
    }


@pytest.mark.parametrize("by", ["ids", "names"])
@pytest.mark.parametrize("count", [1, 7])
def test_answers_are_the_models(served: Served, by: str, count: int) -> None:
    X = rows_of(count)
    status, answer = served.ask("/predict", query_of(X, by, k=4))
    assert status == 200
    ids, scores = served.model.predict_top_k(X, 4)
    found = answer["predictions"]
    assert [row["ids"] for row in found] == ids.tolist()
    assert [row["labels"] for row in found] == served.model.predict_labels(X, 4)
    np.testing.assert_allclose([row["scores"] for row in found], scores, rtol=1e-5)
    described = served.ask("/model")[1]
    assert answer["model"] == described["version"]
    assert (described["features"], described["labels"]) == (FEATURES, LABELS)


def test_values_are_one_where_none_are_given(served: Served) -> None:
    _, answer = served.ask("/predict", {"rows": [{"ids": [5, 2]}], "k": 3})
    row = sp.csr_matrix(([1.0, 1.0], [2, 5], [0, 2]), (1, FEATURES))
    assert answer["predictions"][0]["ids"] == served.model.predict_top_k(row, 3)[0][0].tolist()


def test_an_answer_is_explained(served: Served) -> None:
    X = rows_of(1)
    _, answer = served.ask("/predict", query_of(X, k=2, explain=3))
    row = answer["predictions"][0]
    for label, explanation in zip(row["ids"], row["explanations"], strict=True):
        ids, added = served.model.explain(X, label)
        best = np.argsort(-added, kind="stable")[:3]
        assert [name for name, _ in explanation] == [NAMES["feature_names"][i] for i in ids[best]]
        np.testing.assert_allclose([value for _, value in explanation], added[best], rtol=1e-6)


ONE = {"ids": [3]}
BAD: dict[str, tuple[Any, int, str]] = {
    "no JSON": (b"{", 400, "not JSON"),
    "no text": (b"\xff\xfe", 400, ""),
    "a number of 5,000 digits": (b'{"rows": [{"ids": [' + b"9" * 5000 + b"]}]}", 400, ""),
    "deep": (b"[" * 50_000, 400, ""),
    "no object": ([], 422, "the body: "),
    "no rows": ({"rows": []}, 422, "rows: "),
    "unknown words": ({"rows": [ONE], "topk": 5}, 422, "topk: "),
    "no features": ({"rows": [ONE, {"ids": []}]}, 422, "row 1: it has no features"),
    "zeros": ({"rows": [{"ids": [3], "values": [0]}]}, 422, "row 0: it has no features"),
    "neither": ({"rows": [{}]}, 422, "row 0: give its features either as ids or as names"),
    "both": ({"rows": [{"ids": [1], "names": ["word 1"]}]}, 422, "either as ids or as names"),
    "unknown id": ({"rows": [{"ids": [40]}]}, 422, "feature 40: the model has 0 to 39"),
    "negative id": ({"rows": [{"ids": [-1]}]}, 422, "rows.0.ids.0: "),
    "huge id": ({"rows": [{"ids": [10**30]}]}, 422, "the model has 0 to 39"),
    "unknown name": ({"rows": [{"names": ["word 99"]}]}, 422, "no feature of the name 'word 99'"),
    "not a number": ({"rows": [{"ids": [3], "values": [float("nan")]}]}, 422, "finite"),
    "beyond float32": ({"rows": [ONE, {"ids": [3], "values": [1e300]}]}, 422, "row 1: a value"),
    "sums beyond float32": (
        {"rows": [ONE, {"ids": [3, 3], "values": [3e38, 3e38]}]},
        422,
        "row 1: a value",
    ),
    "a text for a number": ({"rows": [{"ids": ["3"]}]}, 422, "rows.0.ids.0: "),
    "a long word that is unknown": ({"x" * 90_000: 1}, 422, "Extra inputs"),
    "too few values": ({"rows": [{"ids": [3, 4], "values": [1]}]}, 422, "2 features have 1 values"),
    "k": ({"rows": [ONE], "k": 10**9}, 422, "k = 1000000000: there are 30 labels"),
    "k of none": ({"rows": [ONE], "k": 0}, 422, "k: "),
    "many rows": ({"rows": [ONE] * 51}, 422, "51 rows: send at most 50"),
    "many empty rows": (b'{"rows":[' + b"{}," * 30_000, 413, "more than 50 rows or 1,000,000 feat"),
    "many keys": (b"{" + b'"a":1,' * 500, 413, "more than 50 rows"),
    "brackets in texts": (
        b'{"rows":[{"ids":[3]}],"\\"' + b"{:" * 500 + b'":1}',
        422,
        "Extra inputs",
    ),
    "many labels to explain": (
        {"rows": [ONE] * 50, "k": 30, "explain": 1},
        422,
        "30 labels of 50 rows of 50 features to explain: ask for fewer",
    ),
    "many bytes": (b" " * 100_001, 413, "larger than 100,000 bytes"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_request_is_told_and_the_server_goes_on(served: Served, name: str) -> None:
    body, expected, message = BAD[name]
    status, answer = served.ask("/predict", body)
    assert (status, list(answer)) == (expected, ["error"])
    assert message in answer["error"]
    assert "\n" not in answer["error"]
    assert len(answer["error"]) < 5_000
    assert served.ask("/predict", {"rows": [ONE]})[0] == 200


@pytest.mark.parametrize(("sent", "status"), [(b"5\r\nhello\r\n", 408), (b"186A1\r\n", 413)])
def test_a_body_without_an_end(served: Served, sent: bytes, status: int) -> None:
    head = b"POST /predict HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    with socket.create_connection(("127.0.0.1", served.port), timeout=30) as connection:
        connection.sendall(head + sent + b" " * (100_001 if status == 413 else 0))
        answer = connection.recv(1000)
    assert answer.startswith(b"HTTP/1.1 %d " % status)


@pytest.mark.parametrize("sent", [b"", b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"])
def test_headers_that_drip_have_a_time_limit(served: Served, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", served.port), timeout=30) as connection:
        connection.sendall(sent)
        answered = b""
        while sent and not answered.endswith(b"}"):
            answered += connection.recv(1000)
        begun_s = time.monotonic()
        with contextlib.suppress(ConnectionError):
            connection.sendall(b"GET /health HTTP/1.1\r\n")
            connection.settimeout(0.1)
            while time.monotonic() < begun_s + 20:
                with contextlib.suppress(TimeoutError):
                    assert connection.recv(1000) == b""
                    break
                connection.sendall(b"a: b\r\n")
        assert time.monotonic() - begun_s < 10  # the server's limit is one second
    assert b"200 OK" in answered or not sent


def test_connections_that_drip_do_not_shut_the_door(tmp_path: Path) -> None:
    heads = b"GET /health HTTP/1.1\r\na:", b"POST /predict HTTP/1.1\r\nContent-Length: 9\r\n\r\n{"
    with serving(model_of(0), tmp_path / "model") as served, contextlib.ExitStack() as stack:
        resource.prlimit(served.command.pid, resource.RLIMIT_NOFILE, (256, 256))
        connections = []
        for number in range(400):
            address = "127.0.0.1", served.port
            connections.append(stack.enter_context(socket.create_connection(address, timeout=30)))
            connections[-1].sendall(heads[number % 2])
        begun_s = time.monotonic()
        assert served.ask("/health")[0] == 200
        assert time.monotonic() - begun_s < 10  # the time limit of a request is thirty seconds
        with contextlib.suppress(ConnectionResetError):  # the first is cut off, the last is not
            assert connections[0].recv(1) == b""
        connections[-1].settimeout(0.2)
        with pytest.raises(TimeoutError):
            connections[-1].recv(1)


def ask_for_much(served: Served) -> http.client.HTTPConnection:
    """Ask for more than the buffers of a connection hold."""
    connection = served.connect()
    connection.sock = socket.socket()
    connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)
    connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.sock.settimeout(30)
    connection.sock.connect(("127.0.0.1", served.port))
    connection.request("POST", "/predict", json.dumps({"rows": [ONE] * 10, "k": LABELS}))
    return connection


def model_of_long_names() -> Model:
    model, names = model_of(0), tuple(f"{i:05}" * 600 for i in range(LABELS))
    return Model(replace(model.header, label_names=names), model.parameters, model.label_counts)


def test_an_answer_has_a_time_limit_to_be_taken(tmp_path: Path) -> None:
    limit = ("--request-seconds", 1)
    with (
        serving(model_of_long_names(), tmp_path / "model", *limit) as served,
        contextlib.closing(ask_for_much(served)) as never,
        contextlib.closing(ask_for_much(served)) as late,
    ):
        time.sleep(0.2)
        assert len(json.load(late.getresponse())["predictions"]) == 10
        time.sleep(1.3)
        assert served.ask("/health", None, late)[0] == 200
        with pytest.raises(http.client.IncompleteRead):
            never.getresponse().read()


def test_answers_that_nobody_takes_do_not_shut_the_door(tmp_path: Path) -> None:
    model = model_of_long_names()
    with serving(model, tmp_path / "model") as served, contextlib.ExitStack() as stack:
        resource.prlimit(served.command.pid, resource.RLIMIT_NOFILE, (100, 100))
        connections = []
        for _ in range(100):
            connections.append(stack.enter_context(contextlib.closing(ask_for_much(served))))
            with contextlib.suppress(ConnectionError):
                connections[-1].sock.recv(1, socket.MSG_PEEK)
        assert served.ask("/health")[0] == 200
        with pytest.raises(http.client.IncompleteRead):  # the first is cut off, the last is not
            connections[0].getresponse().read()
        assert len(json.load(connections[-1].getresponse())["predictions"]) == 10


@pytest.mark.parametrize("end", [b"", b"\r\n\r\n"])
@pytest.mark.parametrize("kib", [65, 10_000])
def test_headers_have_a_limit_of_size(served: Served, kib: int, end: bytes) -> None:
    with socket.create_connection(("127.0.0.1", served.port), timeout=30) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\na: " + b"b" * (kib << 10) + end)
        with contextlib.suppress(ConnectionResetError):  # answered before all of it was read
            assert b" 400 " in connection.recv(1000)
    assert served.ask("/health")[0] == 200


def test_a_hostile_body_delays_nobody(tmp_path: Path) -> None:
    hostile = [
        b'{"rows":[' + b"{}," * 5_000_000 + b"{}]}",
        b'{"rows":[{"ids":[' + b"-3," * 900_000 + b"3]}]}",
        b'{"rows":[{"ids":[' + b"[]," * 900_000 + b"3]}]}",
        b"{" + b'"a":1,' * 2_000_000 + b'"b":1}',
    ]
    with serving(model_of(0), tmp_path / "model") as server:
        server.ask("/predict", {"rows": [ONE]})
        before = memory_mib(server.command.pid)
        for body in hostile:
            with ThreadPoolExecutor(1) as pool:
                asked, slowest_s = pool.submit(server.ask, "/predict", body), 0.0
                while not asked.done():
                    begun_s = time.perf_counter()
                    assert server.ask("/health")[0] == 200
                    slowest_s = max(slowest_s, time.perf_counter() - begun_s)
                assert asked.result()[0] in (413, 422)  # which the client hears of
            assert slowest_s < 1.5, body[:30]
        assert memory_mib(server.command.pid) < before + 300


def memory_mib(pid: int) -> float:
    """The most that a process has used."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def test_a_client_that_goes_away_in_the_middle(served: Served) -> None:
    for cut in (10, 60, 120):
        body = json.dumps(query_of(rows_of(3))).encode()
        head = b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
        with socket.create_connection(("127.0.0.1", served.port)) as connection:
            connection.sendall((head + body)[:cut])
    assert served.ask("/health") == (200, {"status": "alive"})


def test_a_client_that_goes_away_with_several_requests_under_way(tmp_path: Path) -> None:
    body = json.dumps({"rows": [ONE]}).encode()
    head = b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    with serving(model_of(0), tmp_path / "model") as served:  # which has no traceback at the end
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", served.port), timeout=30) as connection:
                connection.sendall((head + body) * 3)
        assert served.ask("/predict", {"rows": [ONE]})[0] == 200


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda held: (
        st.lists(held, max_size=3) | st.dictionaries(st.text(max_size=5), held, max_size=3)
    ),
    max_leaves=6,
)
almost = st.fixed_dictionaries(
    {"rows": st.lists(st.fixed_dictionaries({}, optional={
        "ids": st.lists(st.integers(-1, 41) | anything, max_size=4),
        "names": st.lists(st.sampled_from(NAMES["feature_names"]) | st.text(), max_size=4),
        "values": st.lists(st.floats() | anything, max_size=4),
    }), max_size=3)},
    optional={"k": st.integers(-1, 40) | anything, "explain": st.integers(-1, 3) | anything},
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.one_of(almost, anything).map(lambda body: json.dumps(body).encode()) | st.binary())
def test_any_request_gets_an_answer(served: Served, body: bytes) -> None:
    status, answer = served.ask("/predict", body)
    assert status in (200, 400, 422)
    assert list(answer) == (["predictions", "model"] if status == 200 else ["error"])


def test_requests_at_the_same_time_get_their_own_answers(served: Served) -> None:
    X = rows_of(40)
    expected = {k: served.model.predict_top_k(X, k)[0].tolist() for k in (2, 5)}

    def ask(caller: int) -> None:
        with contextlib.closing(served.connect()) as connection:
            for turn in range(25):
                first, k = (7 * caller + turn) % 38, (2, 5)[(caller + turn) % 2]
                rows = slice(first, first + 1 + turn % 3)
                status, answer = served.ask("/predict", query_of(X[rows], k=k), connection)
                assert status == 200
                assert [row["ids"] for row in answer["predictions"]] == expected[k][rows]

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, range(8)))


def test_a_newer_model_answers_and_no_request_is_lost(served: Served) -> None:
    X = rows_of(1)
    models = [served.model, model_of(1)]
    expected = [model.predict_top_k(X, 5)[0][0].tolist() for model in models]
    seen: set[str] = set()
    changes: list[bool] = []
    is_over = threading.Event()

    def ask(_: int) -> int:
        count = 0
        with contextlib.closing(served.connect()) as connection:
            while not is_over.is_set():
                status, answer = served.ask("/predict", query_of(X), connection)
                assert status == 200
                assert answer["predictions"][0]["ids"] in expected
                seen.add(answer["model"])
                count += 1
        return count

    with ThreadPoolExecutor(4) as pool:
        asking = [pool.submit(ask, number) for number in range(4)]
        try:
            for model in (models[1], models[1], models[0]):  # the second is no other one
                before, path = served.ask("/model")[1]["version"], served.directory / "model.json"
                model.save(served.directory, overwrite=True)
                written = json.loads(path.read_text())["sha256"][:12]
                os.kill(served.command.pid, signal.SIGHUP)
                until(lambda: served.ask("/model")[1]["version"] == written)  # noqa: B023
                changes.append(written != before)
        finally:
            is_over.set()
        assert sum(future.result() for future in asking) > 20
    assert changes == [True, False, True]
    assert len(seen) == 2


@pytest.mark.parametrize("name", [pytest.param("model", marks=pytest.mark.slow), "model.zip"])
def test_a_calibration_is_taken_at_a_signal(tmp_path: Path, name: str) -> None:
    question, model = query_of(rows_of(1), k=1), model_of(0)
    with serving(model, tmp_path / name) as served:
        before = served.ask("/predict", question)[1]
        X = rows_of(60)
        true = model.predict(X, top_k=2) > 0
        model.calibrate(X, true).save(served.directory, overwrite=True)
        os.kill(served.command.pid, signal.SIGHUP)
        until(lambda: served.ask("/predict", question)[1]["model"] != before["model"])
        after = served.ask("/predict", question)[1]
        assert before["model"] != ""
        assert [row["ids"] for row in before["predictions"]] == [
            row["ids"] for row in after["predictions"]
        ]
        assert before["predictions"] != after["predictions"]


def test_a_damaged_model_is_not_taken(served: Served) -> None:
    file = served.directory / "model.json"
    whole, version = file.read_bytes(), served.ask("/model")[1]["version"]
    try:
        file.write_bytes(whole[:-20])
        os.kill(served.command.pid, signal.SIGHUP)
        assert "model.json: damaged" in served.command.error("the model stays: ")
        assert served.ask("/predict", {"rows": [ONE]})[0] == 200
        assert served.ask("/model")[1]["version"] == version
    finally:
        file.write_bytes(whole)


def test_a_model_may_be_overwritten_in_place(tmp_path: Path) -> None:
    question, other = query_of(rows_of(1)), tmp_path / "other"
    model_of(1).save(other)
    whole = (other / "model.safetensors").read_bytes()
    with serving(model_of(0), tmp_path / "model") as served:
        answer, tensors = served.ask("/predict", question), served.directory / "model.safetensors"
        tensors.write_bytes(b"")
        assert served.ask("/predict", question) == answer
        (served.directory / "model.json").write_bytes((other / "model.json").read_bytes())
        tensors.write_bytes(whole[:-20])
        os.kill(served.command.pid, signal.SIGHUP)
        assert "model.safetensors: damaged" in served.command.error("the model stays: ")
        assert served.ask("/predict", question) == answer
        tensors.write_bytes(whole)
        os.kill(served.command.pid, signal.SIGHUP)
        served.command.error("model ")
        found = served.ask("/predict", question)[1]["predictions"][0]["ids"]
        assert found == model_of(1).predict_top_k(rows_of(1), 5)[0][0].tolist()


def test_the_pages(served: Served) -> None:
    assert served.ask("/ready") == (200, {"ready": True})
    schema = served.ask("/openapi.json")[1]
    assert set(schema["paths"]) == {
        "/predict",
        "/model",
        "/health",
        "/ready",
        "/metrics",
    }
    assert "examples" in schema["components"]["schemas"]["Query"]
    status, page = served.ask("/docs")
    assert status == 200
    assert "http://" not in page
    assert "https://" not in page
    assert "src=" not in page
    assert served.ask("/nothing") == (404, {"error": "Not Found"})
    served.ask("/predict", {"rows": [ONE] * 3})
    counted = served.ask("/metrics")[1]
    assert 'daskxml_requests_total{path="/predict",status="200"}' in counted
    assert "daskxml_batch_rows_count" in counted


def test_requests_under_way_are_answered_at_the_end(tmp_path: Path) -> None:
    model_of(0).save(tmp_path / "model")
    with Command("serve", tmp_path / "model", "--port", 0) as command:
        body = json.dumps({"rows": [ONE]}).encode()
        head = b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
        address = ("127.0.0.1", Served(command, tmp_path / "model").port)
        with socket.create_connection(address, timeout=30) as connection:
            connection.sendall(head + body[:5])
            time.sleep(0.5)
            os.kill(command.pid, signal.SIGTERM)
            time.sleep(0.5)
            connection.sendall(body[5:])
            assert connection.recv(1000).startswith(b"HTTP/1.1 200 ")
        assert command.end()[0] == 0


def test_what_cannot_be_served(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model_of(0).save(tmp_path / "model")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["serve", str(tmp_path / "model"), "--port", port]) == 2
    assert "nobody can listen there" in capsys.readouterr().err
    assert main(["serve", str(tmp_path), "--port", "0"]) == 2
    assert "holds no model" in capsys.readouterr().err
    assert main(["serve", str(tmp_path), "--port", "99999"]) == 2
    assert "--port" in capsys.readouterr().err


def test_names_of_neither_features_nor_labels(tmp_path: Path) -> None:
    named = model_of(0)
    header = replace(named.header, feature_names=(), label_names=())
    unnamed = Model(header, named.parameters, named.label_counts)
    with serving(unnamed, tmp_path / "model") as plain:
        answer = plain.ask("/predict", {"rows": [ONE]})[1]["predictions"][0]
        assert answer["labels"] == answer["ids"]
        refused = plain.ask("/predict", {"rows": [{"names": ["a"]}]})[1]["error"]
        assert "no names of features" in refused


def test_texts_for_a_model_of_texts_and_for_another(served: Served, tmp_path: Path) -> None:
    status, answer = served.ask("/predict", {"text": ["a red car"]})
    assert (status, answer["error"]) == (
        422, "the model was not trained on texts: give rows of features"
    )  # fmt: skip
    model, words = model_of(0), tuple(f"w{i}" for i in range(FEATURES))
    vectorizer = Vectorizer(TextSettings(), words, 9, (1,) * FEATURES)
    header = replace(model.header, feature_names=words, vectorizer=vectorizer)
    model = Model(header, model.parameters, model.label_counts)
    with serving(model, tmp_path / "texts") as of_texts:
        status, found = of_texts.ask("/predict", {"text": ["w3 W5 new", "w1"], "k": 2})
        expected = of_texts.model.predict_text(["w3 w5", "w1"], k=2)
        assert [row["labels"] for row in found["predictions"]] == expected
        for body, problem in (
            ({"text": ["w1", "new"]}, "text 1: it has no word that the model knows"),
            ({"text": [""]}, "text 0: it has no word"),
            ({"text": ["w1"], "rows": [{"ids": [1]}]}, "give either rows or text"),
            ({}, "give either rows or text"),
            ({"text": [3]}, "text.0: Input should be a valid string"),
        ):
            status, answer = of_texts.ask("/predict", body)
            assert (status, answer["error"].startswith(problem)) == (422, True), answer
        assert of_texts.ask("/model")[1]["takes_text"] is True
