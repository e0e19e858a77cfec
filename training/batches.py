"""Batches of the bank: latents and one of the captions of each."""

from __future__ import annotations

import torch

LOST = 0.02
"""The share of words that become the unknown one, so that it means nothing in particular."""


def spread_places(count: int, number: int, device: torch.device) -> torch.Tensor:
    """So many places of 0 to number - 1 by chance, [count], spread over the whole range."""
    spread = torch.arange(count, device=device) + torch.rand(count, device=device)
    return (spread / count * number).long().clamp(0, number - 1)


class Batches:
    """Draws from a bank by its weights; a share `drop` of the captions is emptied, for guidance."""

    def __init__(self, bank: dict, device: torch.device, drop: float = 0.0) -> None:
        moved = {name: bank[name].to(device) for name in ("z", "tok", "first", "w", "empty")}
        self.latents, self.tokens, self.first = moved["z"], moved["tok"], moved["first"]
        self.weight, self.empty = moved["w"].float(), moved["empty"].long()
        self.words, self.drop = len(bank["vocab"]) + 1, drop

    def draw(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Latents and captions of so many samples."""
        index = torch.multinomial(self.weight, count, True)
        known = self.first[index + 1] - self.first[index]
        which = (torch.rand(count, device=index.device) * known).long()
        caption = self.tokens[self.first[index] + which].long()
        lost = torch.rand(caption.shape, device=index.device) < LOST
        caption = torch.where(lost & (caption < self.words - 2), 0, caption)
        dropped = torch.rand(count, device=index.device) < self.drop
        return self.latents[index].float(), torch.where(dropped[:, None], self.empty, caption)
