"""Noisy recall: in-context recall among tokens that mean nothing."""

from __future__ import annotations

from pydantic import Field

from hymo.data.synthetic import task
from hymo.data.tasks.in_context_recall import InContextRecall


@task("noisy_recall")
class NoisyRecall(InContextRecall):
    """Noisy in-context recall of MAD (arXiv 2403.17844): `in_context_recall` in which a fifth of the pairs are two tokens of a noise vocabulary."""

    vocab: int = Field(default=32, gt=0, description="tokens in all, noise included")
    noise_vocab: int = Field(default=16, ge=0, description="tokens that are noise, taken from `vocab`")
    frac_noise: float = Field(default=0.2, ge=0, lt=1, description="chance that a pair is noise")
