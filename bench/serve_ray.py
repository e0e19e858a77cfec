#!/usr/bin/env python3
"""The server on Ray Serve, on loopback: clients ask for pictures of several models, and for ping.

Told are the loads of each model by each replica, the time of a ping while pictures are made, and
how long all of them took, from a start without replicas: 100 clients, 2 replicas of a thread each.
Needs Ray Serve: `pip install 'smalti[serve]'`.

    PYTHONPATH=src python bench/serve_ray.py --models FOLDER
"""

from __future__ import annotations

import argparse
import http.client
import json
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

PORT, HOST = 8123, "127.0.0.1"
OBJECT_STORE_BYTES = 100 << 20
PING_SECONDS = 0.5  # between two of a client
PINGS_A_LOOK = 4
"""Of a client, between two looks at its jobs."""
ENDED = ("done", "failed", "cancelled")


def ask(method: str, path: str, body: Any = None) -> Any:
    """An answer of the front."""
    connection = http.client.HTTPConnection(HOST, PORT, timeout=300)
    connection.request(method, path, None if body is None else json.dumps(body),
                       {"Content-Type": "application/json"})
    found = json.loads(connection.getresponse().read())
    connection.close()
    return found


def client(number: int, names: list[str], jobs: int, clients: int, pings: list[float],
           states: list[str]) -> None:
    """One client: its share of jobs, and pings until they have ended."""
    connection = http.client.HTTPConnection(HOST, PORT, timeout=300)
    ids = [ask("POST", "/api/jobs", {"prompt": "a red apple", "steps": 4, "seed": each,
                                     "model": names[each % len(names)]})["id"]
           for each in range(number, jobs, clients)]
    asked = 0
    while True:
        begun = time.perf_counter()
        connection.request("GET", "/internal/ping")
        connection.getresponse().read()
        pings.append(time.perf_counter() - begun)
        asked += 1
        if asked % PINGS_A_LOOK == 0 and all(
                ask("GET", f"/api/jobs/{id}")["state"] in ENDED for id in ids):
            break
        time.sleep(PING_SECONDS)
    states += [ask("GET", f"/api/jobs/{id}")["state"] for id in ids]


def serve(given: argparse.Namespace) -> None:
    """Begin a cluster with the server, until standard input ends."""
    import ray
    from ray import serve as ray_serve

    from smalti.server.on_ray import app

    ray.init("local", num_cpus=given.replicas, include_dashboard=False,
             object_store_memory=OBJECT_STORE_BYTES)
    ray_serve.start(http_options={"host": HOST, "port": PORT})
    with tempfile.TemporaryDirectory() as output:
        ray_serve.run(app({"models": str(given.models), "output": output, "device": "cpu",
                           "replicas_max": given.replicas, "threads": 1}), name="smalti")
        print("READY", flush=True)
        sys.stdin.read()
        ray_serve.shutdown()
    ray.shutdown()


def measured(given: argparse.Namespace) -> dict[str, Any]:
    """What clients saw, and what replicas said."""
    server = subprocess.Popen(
        [sys.executable, __file__, "--models", str(given.models), "--replicas",
         str(given.replicas), "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True)
    assert server.stdout is not None and server.stdin is not None
    lines: list[str] = []
    for line in server.stdout:
        lines.append(line)
        if line.startswith("READY"):
            break
    else:
        raise SystemExit("".join(lines[-30:]))
    reader = threading.Thread(target=lambda: lines.extend(server.stdout or ()))
    reader.start()
    names = [each["name"] for each in ask("GET", "/api/models")["models"]
             if each["kind"] == "model"]
    pings: list[float] = []
    states: list[str] = []
    begun = time.perf_counter()
    clients = [threading.Thread(target=client, args=(number, names, given.jobs, given.clients,
                                                     pings, states))
               for number in range(given.clients)]
    for each in clients:
        each.start()
    for each in clients:
        each.join()
    seconds = time.perf_counter() - begun
    server.stdin.close()
    server.wait()
    reader.join()
    pings.sort()
    return {"states": dict(Counter(states)), "seconds": round(seconds, 1), "pings": len(pings),
            "ping p50 ms": round(1e3 * pings[len(pings) // 2], 1),
            "ping p99 ms": round(1e3 * pings[int(0.99 * (len(pings) - 1))], 1),
            "loads": [found.groups() for line in lines
                      if (found := re.search(r"replica (\d+) loads (\S+)", line))]}


def main() -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    parser.add_argument("--serve", action="store_true", help="only the server")
    given = parser.parse_args()
    if given.serve:
        serve(given)
        return
    found = measured(given)
    if given.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name}: {value}")


if __name__ == "__main__":
    main()
