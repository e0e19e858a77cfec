"""Answers are as the OpenAPI document says: all that it requires, of these types, and no more."""

from __future__ import annotations

from typing import Any

from served import Client

APPLE: dict[str, Any] = {"prompt": "a red apple", "model": "tiny", "steps": 2}
TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict, "array": list, "string": str, "integer": int, "number": (int, float),
    "boolean": bool, "null": type(None)}


def is_of(value: Any, kind: str) -> bool:
    """Whether a value is of a type of JSON Schema."""
    truth = isinstance(value, bool)
    return isinstance(value, TYPES[kind]) and truth == (kind == "boolean")


def faults(value: Any, schema: dict[str, Any], known: dict[str, Any], at: str = "") -> list[str]:
    """Where a value is not as its schema has it, or has what the schema does not name."""
    if "$ref" in schema:
        schema = known[schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        return min((faults(value, each, known, at) for each in schema["anyOf"]), key=len)
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(is_of(value, each) for each in kinds):
        return [f"{at}: {value!r:.40} is none of {kinds}"]
    if isinstance(value, list):
        return [fault for number, each in enumerate(value)
                for fault in faults(each, schema.get("items", {}), known, f"{at}[{number}]")]
    if not isinstance(value, dict) or "properties" not in schema:
        return []
    named = schema["properties"]
    wrong = {*schema.get("required", ())} - value.keys() | value.keys() - named.keys()
    return [*(f"{at}.{each}: missing, or not named" for each in wrong), *(
        fault for name in value.keys() & named.keys()
        for fault in faults(value[name], named[name], known, f"{at}.{name}"))]


def test_answers_are_as_the_document_says(client: Client) -> None:
    document = client.get("/api/openapi.json").json
    job = client.made(**APPLE)
    client.post("/api/jobs/pause")
    waits = client.post("/api/jobs", APPLE).json["id"]
    picture = job["pictures"][0]["id"]
    for method, path, id in [
            ("get", "/api/jobs/{id}", job["id"]), ("get", "/api/jobs/{id}", waits),
            ("get", "/api/jobs", ""), ("get", "/api/jobs/{id}/times", job["id"]),
            ("delete", "/api/jobs/{id}", waits), ("get", "/api/pictures", ""),
            ("get", "/api/pictures/{id}", picture),
            ("post", "/api/pictures/{id}/favourite", picture),
            ("delete", "/api/pictures/{id}", picture), ("get", "/api/models", ""),
            ("get", "/api/models/defaults", ""), ("post", "/api/models/refresh", ""),
            ("get", "/api/devices", ""), ("get", "/api/pictures/{id}", picture)]:
        address = path.replace("{id}", str(id))
        answer = client.post(address) if method == "post" else client.ask(method.upper(), address)
        said = document["paths"][path][method]["responses"][str(answer.status)]["content"]
        assert faults(answer.json, said["application/json"]["schema"],
                      document["components"]["schemas"]) == [], address
    client.post("/api/jobs/pause", {"paused": False})
