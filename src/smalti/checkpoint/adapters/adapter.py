"""An adapter file: what is in it, which models it is for, and which of their weights it changes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from smalti.checkpoint.adapters.alphas import Alphas
from smalti.checkpoint.adapters.change import BIASES, LayerChange, Unfit
from smalti.checkpoint.adapters.keys import modules
from smalti.checkpoint.adapters.spelling import Shapes, Spellings, backbone_of
from smalti.checkpoint.container import open_tensors
from smalti.checkpoint.embeddings import Embedding, bundled
from smalti.checkpoint.folder import model_name
from smalti.dataclass import dataclass
from smalti.errors import CheckpointError, UnknownFamilyError
from smalti.families import backbones, families
from smalti.families.distilled import Distilled, Recommended, distilled_adapter
from smalti.families.prefixes import UNET
from smalti.families.record import Backbone
from smalti.families.spelling import Target
from smalti.runtime.tensor_file import Tensors

LISTED_MAX = 3  # tensors that are not used, in one line of a warning
UNNAMED = "pytorch_lora_weights"
"""What diffusers calls all adapters; their folders have the names."""


@dataclass(frozen=True)
class Kind:
    """What an adapter is for, or a model is: a kind of denoiser, "text" or "unknown".

    An adapter of blocks that diffusers calls alike in all transformers is for a "transformer".
    `context` is the width of the prompts that a UNet attends to, where that is known; `also` are
    other kinds of denoisers that it may be for, whose layers are called alike.
    """

    id: str
    context: int | None = None
    also: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """What to call it in a sentence."""
        if self.id == "text":
            return "a text encoder alone"
        if self.id == "transformer":
            return alternatives([model for kind in _transformers() for model in kind.models])
        kind = backbones().get(self.id)
        if kind is None:
            return "an unknown model"
        if kind.part == "transformer":
            return alternatives([*kind.models, *(
                model for other in self.also for model in backbones()[other].models)])
        if self.context is None:
            return f"a UNet ({alternatives(kind.models)})"
        titles = {denoiser.context_dim: family.title for family in families().values()
                  for denoiser in family.published if family.backbone.name == kind.name}
        return titles.get(self.context, f"a UNet for prompts {self.context} wide")

    def fits(self, model: Kind) -> bool:
        """Whether an adapter of this kind may be for `model`."""
        if self.id in ("text", "unknown"):
            return True
        if self.id == "transformer":
            return model.id in [kind.name for kind in _transformers()]
        same = self.context is None or model.context is None or self.context == model.context
        return model.id in (self.id, *self.also) and same


@dataclass(frozen=True)
class Placed:
    """A change and the rows that it changes, in the order of the change."""

    change: LayerChange
    target: Target


@dataclass(frozen=True)
class Fit:
    """What an adapter changes in one model: weights and biases by name.

    Each entry is (placed change, number of the part of its target). `unused` are the tensors that
    change nothing, each with the reason.
    """

    weights: Mapping[str, Sequence[tuple[Placed, int]]]
    biases: Mapping[str, Sequence[tuple[Placed, int]]]
    total: int
    unused: Sequence[tuple[str, str]]

    @property
    def applied(self) -> int:
        """How many tensors of the file are used."""
        return self.total - len(self.unused)

    def __str__(self) -> str:
        text = f"applied {self.applied} of {self.total} tensors"
        if not self.unused:
            return text
        listed = "; ".join(f"{name} ({why})" for name, why in self.unused[:LISTED_MAX])
        more = f"; and {len(self.unused) - LISTED_MAX} more" * (len(self.unused) > LISTED_MAX)
        return f"{text}; not used: {listed}{more}"


class AdapterFile:
    """A file of changes to the weights of a model: LoRA, LoCon, LoHa, LoKr, DoRA, differences.

    Nothing but names, shapes and the metadata is read before it is asked for.
    """

    def __init__(self, file: Tensors) -> None:
        self.file, self.path = file, Path(file.path)
        found, self.left = modules(file)
        stated = Alphas.of(file.metadata, self.path)
        self.changes = [LayerChange(module, roles, file, stated.find(module))
                        for module, roles in found.items()]
        marked = [change for change in self.changes
                  if not change.sets or change.roles.get("set_weight", "").endswith("set_weight")]
        if not marked or any(change.module.startswith(("lora_controlnet", "controlnet_"))
                          for change in self.changes):
            raise UnknownFamilyError(
                f"{self.path} is no adapter: of its {len(file)} tensors none is a change to a layer"
                f" (such as lora_down, lora_A, hada_w1_a, lokr_w1 or diff); give a LoRA file")

    @classmethod
    def open(cls, path: str | Path) -> AdapterFile:
        """Open an adapter file, in whatever container (see `open_tensors`).

        Raises CheckpointError for a damaged file and UnknownFamilyError for one that holds no
        changes.
        """
        return cls(open_tensors(path))

    def __repr__(self) -> str:
        return f"AdapterFile({str(self.path)!r}, {len(self.changes)} layers)"

    # ------------------------------------------------------------------ what it is

    @cached_property
    def kind(self) -> Kind:
        """What models it is for, seen from the names of its layers and their widths."""
        names = [change.module.replace(".", "_") for change in self.changes]
        for kind in backbones().values():
            if _any(kind.adapted, names):
                return self._twin(kind) or Kind(
                    kind.name, None if kind.part == "transformer" else self._context())
        if _any(r"transformer_blocks_\d+_", names):
            return Kind("transformer")
        text = all(re.search(r"(^|_)te\d?_|text_(encoder|model)|t5xxl|clip_", n) for n in names)
        return Kind("text" if text else "unknown")

    def _twin(self, kind: Backbone) -> Kind | None:
        """Where other kinds call their layers as this one does: the one that shapes show, or all
        that they do not rule out."""
        twins = [each for each in backbones().values() if each.alike == kind.name]
        also = []
        for twin in twins:
            shown = self._shown(twin)
            if shown == {True}:
                return Kind(twin.name)
            if shown != {False}:
                also.append(twin.name)
        return Kind(kind.name, also=tuple(also)) if twins else None

    def _shown(self, twin: Backbone) -> set[bool]:
        """What the layers of other proportions than in another kind show: whether they are of
        this one."""
        shown = set()
        for change in self.changes:
            for pattern, (inputs, rows) in twin.shaped.items():
                if re.search(pattern, change.module.replace(".", "_")):
                    try:
                        extent = change.extent
                    except Unfit:
                        continue
                    shown.add(extent is not None and extent[0] * inputs == extent[1] * rows)
        return shown

    def _context(self) -> int | None:
        """Width of the prompts that its cross-attention reads, None where it changes none."""
        for change in self.changes:
            if re.search(r"attn2[._](processor\.)?to_[kv]$", change.module):
                try:
                    return change.inputs
                except Unfit:
                    continue
        names = [change.module.replace(".", "_") for change in self.changes]
        deep = r"_transformer_blocks_[4-9]_"  # only SDXL has so many in one place
        return 2048 if _any(rf"^lora_te2_|^text_encoder_2_|{deep}", names) else None

    @cached_property
    def forms(self) -> Counter[str]:
        """How many layers are changed in which way."""
        return Counter(("DoRA of " if change.decomposed else "") + change.kind
                       for change in self.changes)

    @cached_property
    def ranks(self) -> Counter[int]:
        """How many layers have factors of which rank."""
        found: Counter[int] = Counter()
        for change in self.changes:
            try:
                found.update([change.rank] if change.extent and change.rank else [])
            except Unfit:
                continue
        return found

    @cached_property
    def embeddings(self) -> list[Embedding]:
        """The textual-inversion embeddings that come with it.

        Raises UnknownFamilyError where what is called so is none.
        """
        return bundled(self.file)

    def distilled(self, recommended: Recommended) -> Distilled | None:
        """How it makes a model one of few steps, of the ways that are `recommended`, by its name
        and the titles in its metadata; None where these say nothing."""
        named = self.path.parent if self.path.stem == UNNAMED else self.path
        return distilled_adapter(recommended, model_name(named), *(
            self.file.metadata.get(key, "") for key in ("modelspec.title", "ss_output_name")))

    # ------------------------------------------------------------------ what it changes

    def fit(self, shapes: Shapes, title: str) -> Fit:
        """What it changes in a model whose weights have these `shapes`, by their own names.

        Raises CheckpointError when it is for models of another kind, or when nothing of it fits.
        """
        model = kind_of(shapes)
        if not self.kind.fits(model):
            raise CheckpointError(f"{self.path} is an adapter for {self.kind.words}, and {title} "
                                  f"is {model.words}; use it with a model that it was made for")
        spellings = Spellings(shapes)
        unused = [(name, "no kind of change that Smalti knows") for name in self.left]
        weights: dict[str, list[tuple[Placed, int]]] = {}
        biases: dict[str, list[tuple[Placed, int]]] = {}
        targets = [spellings.find(change.module) for change in self.changes]
        doubled = _doubled(self.changes, targets)
        for number, (change, target) in enumerate(zip(self.changes, targets, strict=True)):
            self._require_input(change, target, shapes, title)
            try:
                if target is None:
                    raise Unfit("the model has no such layer")
                if number in doubled:
                    raise Unfit("the same rows are changed by other names, too")
                changed, changed_biases, left = _placed(change, target, shapes)
            except Unfit as error:
                unused += [(name, str(error)) for name in change.roles.values()]
                continue
            unused += left
            for table, names in ((weights, changed), (biases, changed_biases)):
                for part, name in enumerate(names):
                    table.setdefault(name, []).append((Placed(change, target), part))
        total = len(self.left) + sum(len(change.roles) for change in self.changes)
        fit = Fit(weights, biases, total, unused)
        if not fit.applied:
            seems = "" if self.kind.id == "unknown" else f"it seems to be for {self.kind.words}; "
            raise CheckpointError(f"{self.path} changes nothing in {title}: {fit}; {seems}use it "
                                  f"with a model that it was made for")
        return fit

    def _require_input(self, change: LayerChange, target: Target | None, shapes: Shapes,
                       title: str) -> None:
        """Raise CheckpointError where the first layer is to read more than it does: the rest would
        be of no use without what comes in there."""
        first = {UNET + kind.first for kind in backbones().values()}
        if target is None or target[0].layer not in first:
            return
        try:
            inputs = change.inputs
        except Unfit:
            return
        own = shapes[f"{target[0].layer}.weight"][1]
        if inputs is not None and inputs > own and inputs % own == 0:
            raise CheckpointError(f"{self.path} makes the model read {inputs} channels, {title} "
                                  f"reads {own}; it is for pictures that are steered by others, "
                                  f"and needs a model that was made for that")


def _doubled(changes: Sequence[LayerChange], targets: Sequence[Target | None]) -> set[int]:
    """The numbers of the changes that say of the same rows what others do: some trainers of Z-Image
    write a fused layer and its parts. The smaller ones count, and of equal ones the first."""
    ordered = sorted((number for number, target in enumerate(targets) if target is not None),
                     key=lambda number: sum(rows.count for rows in targets[number] or ()))
    taken: dict[str, list[range]] = {}
    found = set()
    for number in ordered:
        parts = [(rows.layer, range(rows.start, rows.start + rows.count))
                 for rows in targets[number] or ()]
        if any(max(mine.start, other.start) < min(mine.stop, other.stop)
               for layer, mine in parts for other in taken.get(layer, ())
               if changes[number].roles.keys() & {"down", "up"}):
            found.add(number)
            continue
        for layer, mine in parts:
            taken.setdefault(layer, []).append(mine)
    return found


def kind_of(shapes: Shapes) -> Kind:
    """What a model is, from the names and shapes of its weights.

    >>> kind_of({UNET + "middle_block.1.transformer_blocks.0.attn2.to_k.weight": (1280, 768)}).words
    'Stable Diffusion 1.x'
    """
    contexts = [shape[1] for name, shape in shapes.items()
                if name.startswith(UNET) and name.endswith("attn2.to_k.weight")]
    if contexts:
        return Kind("unet", contexts[0])
    found = backbone_of(shapes)
    if found is not None:
        return Kind(found.name)
    return Kind("text" if shapes else "unknown")


def _transformers() -> list[Backbone]:
    """The kinds of denoisers whose blocks diffusers calls those of a transformer."""
    return [kind for kind in backbones().values()
            if kind.part == "transformer" and kind.stack == "transformer_blocks"]


def alternatives(words: Sequence[str]) -> str:
    """Things in a sentence, of which one is meant.

    >>> alternatives(["Flux.1", "Chroma", "Stable Diffusion 3"]), alternatives(["Flux.1"])
    ('Flux.1, Chroma or Stable Diffusion 3', 'Flux.1')
    """
    *others, last = words
    return f"{', '.join(others)} or {last}" if others else last


def _placed(change: LayerChange, target: Target, shapes: Shapes
            ) -> tuple[list[str], list[str], list[tuple[str, str]]]:
    """Names of the weights and of the biases that a change is for, part by part, and its tensors
    that are of no use. Raises Unfit where it cannot be applied."""
    if "reshape_weight" in change.roles:
        raise Unfit("it gives the layer another shape")
    extent, names, biases = change.extent, [], []
    left = [(name, "the layer is changed in another way, too") for name in change.idle]
    if extent is not None:
        names = [next(name for name in (f"{rows.layer}.weight", f"{rows.layer}.scale")
                      if name in shapes) for rows in target]
        widths = {_width(shapes[name]) for name in names}
        height = sum(rows.count for rows in target)
        if extent[0] != height or widths != {extent[1]}:
            found = " or ".join(f"{height} x {width}" for width in sorted(widths))
            raise Unfit(f"for a weight of {extent[0]} x {extent[1]} numbers, the model's has "
                        f"{found}")
    given = [role for role in BIASES if role in change.roles]
    for role in given[:1]:
        biases = [f"{rows.layer}.bias" for rows in target]
        count = sum(rows.count for rows in target)
        if any(bias not in shapes for bias in biases):
            why, biases = "the layer has no bias", []
        elif change.shape(role) != (count,):
            why, biases = f"shape {change.shape(role)}, expected {(count,)}", []
        if not biases:
            left.append((change.roles[role], why))
    left += [(change.roles[role], "the bias is changed in another way, too") for role in given[1:]]
    if not names and not biases:
        raise Unfit(left[0][1] if left else "nothing to change")
    return names, biases, left


def _width(shape: tuple[int, ...]) -> int:
    width = 1
    for extent in shape[1:]:
        width *= extent
    return width


def _any(pattern: str, names: Sequence[str]) -> bool:
    return any(re.search(pattern, name) for name in names)
