"""The catalogue: its format, and what it stands for."""

from __future__ import annotations

import json

import pytest
from hub_server import HubServer
from safetensors.numpy import save
from tiny_model import METADATA, tiny_weights

from smalti.diffusion.load_options import LoadOptions, checked_defaults
from smalti.diffusion.named import fetched
from smalti.errors import FetchError
from smalti.families import families
from smalti.fetch import catalogue
from smalti.fetch.address import HubAddress, parsed

GOOD = {"name": "a", "title": "A", "kind": "model", "source": "hf:a/b:c.safetensors"}


def test_every_entry_can_be_used() -> None:
    for entry in catalogue.entries().values():
        assert entry.title and entry.licence, entry.name
        assert entry.family in (*families(), ""), entry.name
        assert bool(entry.family) or entry.kind != "model", entry.name
        address = parsed(entry.source)
        assert isinstance(address, HubAddress) and (address.file or entry.kind == "adapter") \
            or entry.kind == "upscaler" and entry.sha256 == getattr(address, "sha256", None)
        assert all(needed.kind != "model" for needed in catalogue.needed(entry)), entry.name
        checked_defaults(entry.needs.get("defaults", {}))


def test_every_family_has_a_short_name() -> None:
    """But for Stable Diffusion 2, whose authors withdrew it, what later versions replace, and
    LongCat-Image and FLUX.3-image, of which no file of one model was found."""
    replaced = {"sd2", "qwen-image-edit", "qwen-image-edit-2509", "longcat-image", "flux3"}
    named = {each.family for each in catalogue.entries().values() if each.kind == "model"}
    assert {*families()} - replaced == named - {""}


def test_a_repository_has_one_licence_and_a_file_one_hash() -> None:
    repositories: dict[tuple[str, str], set[tuple[str, bool]]] = {}
    files: dict[str, set[tuple[int | None, str]]] = {}
    for each in catalogue.entries().values():
        files.setdefault(each.source, set()).add((each.bytes, each.sha256))
        if isinstance(address := parsed(each.source), HubAddress):
            place = address.repository, address.revision
            repositories.setdefault(place, set()).add((each.licence, each.accept))
    assert not {place: told for place, told in repositories.items() if len(told) > 1}
    assert not {source: told for source, told in files.items() if len(told) > 1}


@pytest.mark.parametrize(("told", "said"), [
    ({"name": "A b"}, "a name that is none"), ({"kind": "film"}, "the kind 'film'"),
    ({"source": "a.safetensors"}, "is no|is not|names no|no hash"), ({"sha256": "12"}, "a hash or"),
    ({"bytes": 0}, "a hash or a size"), ({"needs": {"x": "a"}}, r"needs \['x'\]"),
    ({"needs": {"vae": "b"}}, "needs 'b', which"),
    ({"needs": {"defaults": 4}}, "defaults 4; expected an object of settings"),
    ({"size": 3}, r"says \['size'\] of 'a'")])
def test_entries_that_cannot_be_used(told: dict[str, object], said: str) -> None:
    with pytest.raises(FetchError, match=said):
        catalogue.read(json.dumps([{**GOOD, **told}]))
    with pytest.raises(FetchError, match="has 'a' twice"):
        catalogue.read(json.dumps([GOOD, GOOD]))


def test_a_search_looks_at_names_titles_kinds_and_families() -> None:
    assert {each.name for each in catalogue.search("chroma model")} == {"chroma"}
    assert [each.name for each in catalogue.search("upscaler")] == ["realesrgan-x4plus"]
    assert catalogue.search("no such thing") == []


def test_a_short_name_brings_what_the_model_needs(
        hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    model = save(tiny_weights(), METADATA)
    hub.repositories["org/tiny"] = {f"{name}.safetensors": model for name in "avtl"}
    told = [{**GOOD, "name": name, "source": f"hf:org/tiny:{name}.safetensors"}
            for name in "vtl"]
    table = catalogue.read(json.dumps([*told, {
        **GOOD, "source": "hf:org/tiny:a.safetensors",
        "needs": {"vae": "v", "text_encoders": ["t"], "prediction": "v_prediction",
                  "loras": ["l"], "defaults": {"steps": 4, "sampler": "lcm"}}}]))
    monkeypatch.setattr(catalogue, "entries", lambda: table)
    found = fetched(LoadOptions("a", device="cpu"))
    assert [path.name for path in (found.path, found.vae, *found.text_encoders, *found.loras)] == [
        "a.safetensors", "v.safetensors", "t.safetensors", "l.safetensors"]
    assert found.prediction == "v_prediction" and found.defaults == {"steps": 4, "sampler": "lcm"}
    given = fetched(LoadOptions("a", device="cpu", vae="own.safetensors", prediction="epsilon",
                                loras=[("own.safetensors", 0.5)], defaults={"steps": 5}))
    assert given.vae == "own.safetensors" and given.prediction == "epsilon"
    assert given.defaults == {"steps": 5, "sampler": "lcm"}
    first, own = given.loras
    assert first.name == "l.safetensors" and own == ("own.safetensors", 0.5)
    [(weighed, weight)] = fetched(LoadOptions("a", device="cpu", loras=[("l", 0.8)])).loras
    assert weighed.name == "l.safetensors" and weight == 0.8


def test_a_hash_that_the_catalogue_says_counts(
        hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repositories["org/tiny"] = {"c.safetensors": save(tiny_weights(), METADATA)}
    table = catalogue.read(json.dumps([{**GOOD, "source": "hf:org/tiny:c.safetensors",
                                        "sha256": "0" * 64}]))
    monkeypatch.setattr(catalogue, "entries", lambda: table)
    with pytest.raises(FetchError, match="c.safetensors is another file now than the catalogue"):
        fetched(LoadOptions("a", device="cpu"))
