#!/usr/bin/env python3
"""The server on Ray Serve, on loopback: pictures of several models, while clients poll.

Told are the loads of each model by each replica, the time of a ping while pictures are made, and
how long all of them took, from a start without replicas: 100 clients, which are one process beside
the server, 2 replicas of a thread each. Needs Ray Serve: `pip install 'smalti[serve]'`.

    PYTHONPATH=src python bench/serve_ray.py --models FOLDER
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from served import HOST, polling

PORT, OWN_PORT = 8123, 8124
"""Of Serve's proxy, and of the front itself."""
OBJECT_STORE_BYTES = 100 << 20
PING = "/internal/ping"
PING_SECONDS = 0.5
"""Between two questions of a client, of which every second one is a ping."""
LOOK_SECONDS = 1.0
"""Between two looks at the jobs."""
ENDED = ("done", "failed", "cancelled")


def ask(method: str, path: str, body: Any = None) -> Any:
    """An answer of the front."""
    connection = http.client.HTTPConnection(HOST, PORT, timeout=300)
    connection.request(method, path, None if body is None else json.dumps(body),
                       {"Content-Type": "application/json"})
    found = json.loads(connection.getresponse().read())
    connection.close()
    return found


def ended(ids: list[str]) -> list[str]:
    """The states of jobs when all have ended."""
    states: dict[str, str] = {}
    while len(states) < len(ids):
        time.sleep(LOOK_SECONDS)
        for id in ids:
            if id in states:
                continue
            found = ask("GET", f"/api/jobs/{id}")["state"]
            if found not in ENDED:
                break  # jobs end about in the order of their numbers
            states[id] = found
    return [*states.values()]


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
                           "replicas_max": given.replicas, "threads": 1, "port": OWN_PORT}),
                      name="smalti")
        print("READY", flush=True)
        sys.stdin.read()
        ray_serve.shutdown()
    ray.shutdown()


def measured(given: argparse.Namespace) -> dict[str, Any]:
    """What clients saw, and what replicas said."""
    server = subprocess.Popen(
        [sys.executable, __file__, "--models", str(given.models), "--replicas",
         str(given.replicas), "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, env={**os.environ, "RAY_DEDUP_LOGS": "0"})
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
    begun = time.perf_counter()
    jobs = [ask("POST", "/api/jobs", {"prompt": "a red apple", "steps": 4, "seed": seed,
                                      "model": name})["id"]
            for seed, name in zip(range(given.jobs), itertools.cycle(names))]
    look = f"/api/jobs/{jobs[-1]}"
    port = PORT if given.proxy else OWN_PORT
    with polling(port, given.clients, PING_SECONDS, (PING, look)) as answers:
        states = ended(jobs)
    seconds = time.perf_counter() - begun
    server.stdin.close()
    server.wait()
    reader.join()
    pings = sorted(answers[PING])
    return {"states": dict(Counter(states)), "seconds": round(seconds, 1), "pings": len(pings),
            "ping p50 ms": round(1e3 * pings[len(pings) // 2], 1),
            "ping p99 ms": round(1e3 * pings[int(0.99 * (len(pings) - 1))], 1),
            "loads": [found.groups() for line in lines
                      if (found := re.search(r"replica (\d+) loads ([\w.-]+)", line))]}


def main() -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--proxy", action="store_true",
                        help="clients poll through Serve's proxy, not at the front's own port")
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
