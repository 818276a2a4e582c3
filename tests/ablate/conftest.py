"""A world small enough for tests: a text, a two-layer recipe, an experiment over it, and an engine that works in this process."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path

import pytest

from hymo.ablate.conduct import Site
from hymo.ablate.definition import load
from hymo.ablate.plan import make_plan
from hymo.ablate.store import Outcome, Status, Store
from hymo.ablate.worker import work_on

RECIPE = """
name: small
model:
  vocab_size: 257
  d_model: 16
  pattern: MG
  max_seq_len: 64
  layers:
    M:
      mixer: {type: mla, n_heads: 2, n_kv_groups: 1, head_dim: 8, rope_dim: 4, v_head_dim: 8, q_lora_rank: 8, kv_lora_rank: 8}
      ffn: {type: dense_ffn, inter_dim: 16}
    G: {mixer: {type: gdn, d_inner: 16, head_dim: 8, d_state: 4}}
optimizer:
  normuon: {lr: 5e-3, scaling: rms_norm}
  adamw: {lr: 5e-3}
data: {source: SOURCE, tokenizer: bytes, max_epochs: 100}
train: {steps: 4, seq_len: 16, tokens_per_step: 32, device: cpu}
eval: {tokens: 128, every: 4}
run: {tracking: none, checkpoint_every: 4}
"""

EXPERIMENT = """
hypothesis: The order does not matter.
base: small.yaml
factor: [order, mixer.rope, ffn.inter_dim]
delta_min: 0.01
margin: 0.01
match: none
arms:
  swap: {model.swap: [[0, 1]]}
  wide: {model.layers.M.ffn.inter_dim: x2}
expectation: Equivalent.
"""


class Inline:
    """An engine without processes."""

    def __init__(self, store):
        self.store = store

    def __call__(self, specs, session, progress):
        for spec in specs:
            self.store.write_spec(spec)
        work_on(self.store, [spec.key for spec in specs], session)
        progress()


class Told(Inline):
    """An engine that trains nothing: `value(arm, seed)` is the held-out loss, NaN for a run that diverges."""

    def __init__(self, store, value):
        super().__init__(store)
        self.value = value

    def __call__(self, specs, session, progress):
        for spec in specs:
            self.store.write_spec(spec)
            if self.store.resolved(spec.key, session) is None:
                arm, seed = spec.name.rsplit(" seed ", 1)
                self.store.write_outcome(spec.key, outcome_of(self.value(arm, int(seed))))


def outcome_of(loss):
    """A run with this held-out loss, and a probe that is always 0.1 above it."""
    if math.isnan(loss):
        return Outcome(Status.DIVERGED, error="at step 3")
    metrics = {"val/loss": loss, "probe/length/loss_2x": loss + 0.1}
    return Outcome(Status.FINISHED, metrics, [(1, 5.0), (4, loss)], [(4, loss)], [(1, loss), (2, loss)], ["probe/length/loss_2x"])


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def text_folder(tmp_path_factory) -> Path:
    """Sixty documents of words drawn from a fixed seed."""
    folder = tmp_path_factory.mktemp("text")
    draw = random.Random(0)
    words = ["order", "of", "layers", "matters", "little", "to", "the", "loss"]
    for number in range(60):
        (folder / f"{number:02d}.txt").write_text(" ".join(draw.choices(words, k=60)))
    return folder


@pytest.fixture
def write_experiment(tmp_path, text_folder):
    """write(name, text, recipe) -> name; the experiment lies in ./experiments."""

    def write(name="order", text=EXPERIMENT, recipe=RECIPE):
        folder = tmp_path / "experiments" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "ablation.yaml").write_text(text)
        (folder / "small.yaml").write_text(recipe.replace("SOURCE", f"{text_folder}/*.txt"))
        return name

    return write


@pytest.fixture
def plan_of(write_experiment):
    """plan(text, **options) -> a plan at full scale of the small recipe."""

    def plan(text=EXPERIMENT, seeds=2, **options):
        return make_plan([load(write_experiment(text=text))], scale="full", seeds=seeds, **options)

    return plan


@pytest.fixture
def site(tmp_path):
    """A store and an inline engine; `site.said` collects what is said."""
    store = Store(tmp_path / "ablations")
    said = []
    found = Site(store, Inline(store), "cpu", 1, said.append, lambda specs, session: lambda: None)
    return found


@pytest.fixture
def told(site):
    """told(value) -> a site whose runs have the losses that value(arm, seed) says."""
    return lambda value: replace(site, engine=Told(site.store, value))
