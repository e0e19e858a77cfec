"""A recipe for a target of another kind of device than the program's own."""

from __future__ import annotations

from smalti.codegen.target import Target
from smalti.runtime.cpu.recipe import recipe_of
from smalti.runtime.recipe import Recipe


def suited(recipe: Recipe, target: Target) -> Recipe:
    """`recipe`, where it is for a target; else one for it of the same graph and options: for this
    CPU, or for any device of that kind, with the limits that all of them have.

    Raises InputError where such a device has not the precision of the recipe.
    """
    options = recipe.options
    if target in recipe.targets:
        return recipe
    if target.least is not None:
        from smalti.runtime.gpu.recipe import recipe_anywhere  # GPUs alone need it

        return recipe_anywhere(target, recipe.graph, options)
    return recipe_of(recipe.graph, options.asked, options.held, options.threads,
                     dict(options.weights), options.objective, target.name, dict(options.kept))
