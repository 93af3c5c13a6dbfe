"""A server under load, on the loopback: requests a second, their times, and a reload in the middle.

    python benchmarks/speed/serving_load.py [--rate 500] [--seconds 20] [--requests 10000]

`daskxml serve` answers for a generated network with nvd-product's 21,764 labels (or ``--labels``),
a row a request: as trained, and compressed to 8 bits. First requests come at a fixed rate, whether
or not earlier ones are answered, over 16 connections that stay open; then 10,000 as fast as four
connections can, while the model is replaced half-way. The client is a process of its own on the
same machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import prediction

sys.path.insert(0, str(Path(__file__).parents[1]))

from machine import with_earlier, write_result

CONNECTIONS = 16


class Connection:
    """One that stays open, with a request at a time."""

    async def open(self, port: int) -> Connection:
        """Connect."""
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", port)
        return self

    async def ask(self, path: str, body: bytes) -> tuple[int, bytes]:
        """Return the status and the body of an answer."""
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        self.writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        answer = await self.reader.readuntil(b"\r\n\r\n")
        length = int(answer.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        return int(answer.split(b" ", 2)[1]), await self.reader.readexactly(length)


async def at_rate(port: int, bodies: list[bytes], rate: float, seconds: float) -> dict[str, Any]:
    """Ask at a fixed rate; times count from when a request was due."""
    idle: asyncio.Queue[Connection] = asyncio.Queue()
    for _ in range(CONNECTIONS):
        idle.put_nowait(await Connection().open(port))
    took: list[float] = []
    failed = 0

    async def one(number: int, due: float) -> None:
        nonlocal failed
        await asyncio.sleep(due - time.perf_counter())
        connection = await idle.get()
        status, _ = await connection.ask("/predict", bodies[number % len(bodies)])
        idle.put_nowait(connection)
        took.append(time.perf_counter() - due)
        failed += status != 200

    begun, count = time.perf_counter() + 0.2, int(rate * seconds)
    await asyncio.gather(*(one(number, begun + number / rate) for number in range(count)))
    return {
        "what": f"{rate:g} requests/s", "requests": count, "failed": failed,
        "per_s": count / (time.perf_counter() - begun), **quantiles(took),
    }  # fmt: skip


async def with_reload(server: Any, port: int, bodies: Any, count: int, replace: Any) -> Any:
    """Ask as fast as four connections can; the model is replaced half-way."""
    took: list[float] = []
    models: dict[str, int] = {}
    failed = left = 0
    left = count

    async def caller() -> None:
        nonlocal failed, left
        connection = await Connection().open(port)
        while left > 0:
            left -= 1
            begun = time.perf_counter()
            status, answer = await connection.ask("/predict", bodies[left % len(bodies)])
            took.append(time.perf_counter() - begun)
            failed += status != 200
            version = json.loads(answer).get("model", "")
            models[version] = models.get(version, 0) + 1

    async def reload() -> None:
        while left > count // 2:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(replace)
        server.send_signal(signal.SIGHUP)

    begun = time.perf_counter()
    await asyncio.gather(reload(), *(caller() for _ in range(4)))
    return {
        "what": "4 connections, a reload half-way", "requests": len(took), "failed": failed,
        "per_s": len(took) / (time.perf_counter() - begun), **quantiles(took),
        "models": len(models),
    }  # fmt: skip


def quantiles(took_s: list[float]) -> dict[str, float]:
    """Return the median and the slow end of times, in milliseconds."""
    p50, p99, worst = np.quantile(took_s, [0.5, 0.99, 1.0]) * 1e3
    return {"p50_ms": round(p50, 2), "p99_ms": round(p99, 2), "max_ms": round(worst, 2)}


def main() -> None:
    """Start a server, load it, and end it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--labels", type=int, default=21_764)
    parser.add_argument("--rate", type=float, default=500.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    rows = []
    for bits in (32, 8):
        with tempfile.TemporaryDirectory() as folder:
            prediction.generate(Path(folder), options.labels, bits)
            rows += [{"bits": bits, **row} for row in loaded(Path(folder), options)]
    rows = with_earlier("serving_load", rows)
    write_result("serving_load", rows, labels=options.labels, threads=options.threads)


def loaded(folder: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Start a server of a model, load it, and end it; return the rows of the table."""
    rng = np.random.default_rng(2)
    bodies = [
        json.dumps({"rows": [{
            "ids": rng.integers(0, prediction.FEATURES, prediction.ROW_FEATURES).tolist(),
            "values": rng.random(prediction.ROW_FEATURES).round(4).tolist(),
        }]}).encode()
        for _ in range(500)
    ]  # fmt: skip
    command = [sys.executable, "-m", "daskxml", "serve", str(folder), "--port", "0"]
    command += ["--threads", str(options.threads)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout
        while "answering at" not in (line := server.stdout.readline()):
            assert line, "the server has ended"
        port = int(line.split("/predict")[0].rpartition(":")[2])
        replace = replacer(folder)
        asyncio.run(at_rate(port, bodies, 50.0, 2.0))  # warm
        rows = [
            asyncio.run(at_rate(port, bodies, options.rate, options.seconds)),
            asyncio.run(with_reload(server, port, bodies, options.requests, replace)),
        ]
    finally:
        server.terminate()
        status = server.wait(60)
    assert status == 0
    assert rows[1]["models"] == 2
    rows[0]["models"] = 1
    return [{**row, "per_s": round(row["per_s"], 1)} for row in rows]


def replacer(folder: Path) -> Any:
    """Return what writes another model over the one that answers."""
    from daskxml.models.trained import Model

    model = Model.load(folder)
    bias = model.parameters["output.bias"] + np.float32(1)
    other = Model(model.header, {**model.parameters, "output.bias": bias}, model.label_counts)
    return lambda: other.save(folder, overwrite=True)


if __name__ == "__main__":
    main()
