"""Everything hostile that a recipe, a tokenizer, a folder of tokens or a checkpoint can be, read one after the other in one process.

`python hostile.py FOLDER` prints a JSON object a case: name, what was said, seconds of processor time, and the process's peak memory in MB.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from hymo import registry
from hymo.block import KINDS
from hymo.cost import count
from hymo.data.shards import ShardFolder
from hymo.data.sources.listing import list_files
from hymo.data.tokenizer import read_tokenizer
from hymo.errors import HymoError
from hymo.recipe import load_recipe
from hymo.train.checkpoint import open_checkpoint

Case = tuple[str, Callable[[], object]]
ROOM = 8 << 30          # bytes of address space: a bomb ends the process, not the machine
GIANTS = {"a slip": 2**24, "too many": 2**24 + 1, "no int64": 10**30, "negative": -1}

BOMB = "a: &a [x, x]\n" + "".join(f"{chr(98 + i)}: &{chr(98 + i)} [*{chr(97 + i)}, *{chr(97 + i)}]\n" for i in range(24))
RECIPE = """\
name: hostile
model:
  vocab_size: 257
  d_model: 16
  pattern: MG
  layers: {M: {mixer: {type: mla, n_heads: 2, n_kv_groups: 1, head_dim: 8, rope_dim: 4}, ffn: dense_ffn}, G: {mixer: {type: gdn, d_inner: 32}}}
optimizer: {normuon: {lr: 1e-3, scaling: rms_norm}, adamw: {lr: 1e-3}}
train: {steps: 1, seq_len: 64, tokens_per_step: 64}
"""
OVERRIDES = [*(f'"all,{i}": G' for i in range(1_000)), "9999: M"]

TEXTS = {
    "YAML bomb": BOMB,
    "brackets": "[" * 60_000,
    "mappings in mappings": "{a: " * 15_000,
    "lists in lists": "- " * 30_000,
    "indented mappings": "".join(f"{' ' * i}a:\n" for i in range(300)),
    "many values": "a: [" + "1," * 30_000 + "]",
    "many keys": "\n".join(f"k{i}: {i}" for i in range(6_000)),
    "a long scalar": "name: " + "x" * 60_000,
    "a long key": "x" * 60_000 + ": 1",
    "a tag that runs code": "name: !!python/object/apply:os.system ['touch exploded']",
    "two megabytes": "#" * (2 << 20),
    "not UTF-8": "name: \udcff",
    "a zero byte": "name: a\0b",
    "fullwidth digits": RECIPE.replace("d_model: 16", "d_model: １６"),
    "a Cyrillic key": RECIPE.replace("model:", "mоdel:", 1),
    "right to left": RECIPE.replace("name: hostile", 'name: "a\u202eb"'),
    "zero-width": RECIPE.replace("pattern: MG", 'pattern: "M\u200bG"'),
    "a combining symbol": RECIPE.replace("{M: {", '{"M\u0301": {'),
    "names that climb": RECIPE.replace("name: hostile", "name: ../../../tmp/x"),
    "not a number": RECIPE.replace("lr: 1e-3", "lr: .nan"),
    "infinite": RECIPE.replace("lr: 1e-3", "lr: -.inf"),
    "beyond a double": RECIPE.replace("lr: 1e-3", "lr: 1e999"),
    "five thousand digits": RECIPE.replace("d_model: 16", "d_model: " + "9" * 5_000),
    "a negative rate": RECIPE.replace("lr: 1e-3", "lr: -1"),
    "a seed beyond 64 bits": RECIPE + "run: {seed: 99999999999999999999999}\n",
    "a million threads": RECIPE.replace("{steps: 1", "{threads: 1000000, steps: 1"),
    "a thousand million layers": RECIPE.replace("pattern: MG", "pattern: MG*1000000000"),
    "repeats of repeats": RECIPE.replace("pattern: MG", "pattern: (((MG*1000)*1000)*1000)*1000"),
    "brackets in a pattern": RECIPE.replace("pattern: MG", "pattern: " + "(" * 4_000),
    "overrides times layers": RECIPE.replace("pattern: MG", f"pattern: MG*512\n  overrides: {{{', '.join(OVERRIDES)}}}"),
    "swaps": RECIPE.replace("pattern: MG", "pattern: MG\n  swap: [" + "[0, 1], " * 1_000 + "[0, 9]]"),
    "extends itself": "extends: case.yaml",
    "extends a device": "extends: /dev/zero",
    "extends the password file": "extends: ../../../../../../etc/passwd",
    "extends a loop of links": "extends: loop",
    "block code from elsewhere": RECIPE + "blocks: [/usr/lib/python3/dist-packages/antigravity.py]\n",
}


def recipes(folder: Path) -> Iterator[Case]:
    """Hostile recipes, each in the file case.yaml."""
    path = folder / "case.yaml"
    (folder / "loop").symlink_to("loop")

    def read(text: str) -> None:
        path.write_text(text, encoding="utf-8", errors="surrogateescape")
        count(load_recipe(path))

    for name, text in TEXTS.items():
        yield f"recipe: {name}", partial(read, text)
    for kind in KINDS:
        for name in registry.names(kind):
            for key, field in registry.get(kind, name).Config.model_fields.items():
                if field.annotation is int or field.annotation == (int | None):
                    for what, value in GIANTS.items():
                        yield f"recipe: {what}, {kind} {name}.{key}", partial(read, one_block(kind, name, f"{key}: {value}"))
    for key in ("vocab_size", "d_model", "max_seq_len"):
        for what, value in GIANTS.items():
            yield f"recipe: {what}, model.{key}", lambda key=key, value=value: read(RECIPE) or count(load_recipe(path, [f"model.{key}={value}"]))
    yield "recipe: a loop of links", lambda: load_recipe(folder / "loop")
    yield "recipe: a device", lambda: load_recipe(Path("/dev/zero"))


def one_block(kind: str, name: str, setting: str) -> str:
    """RECIPE with this block in it."""
    block = f"{{type: {name}, {setting}}}"
    if kind == "mixer":
        return RECIPE.replace("{type: gdn, d_inner: 32}", block)
    if kind == "ffn":
        return RECIPE.replace("dense_ffn", block)
    return RECIPE.replace("  d_model", f"  {'rope' if kind == 'position' else 'mtp'}: {block}\n  d_model")


def files(folder: Path) -> Iterator[Case]:
    """Hostile tokenizers, data folders and checkpoints."""
    loop = folder / "links"
    loop.mkdir()
    (loop / "up").symlink_to(loop)
    (loop / "a.txt").write_text("text")
    giant = folder / "giant.json"
    with giant.open("wb") as file:
        file.truncate(200 << 30)        # takes no room on the disk
    nested = folder / "nested.json"
    nested.write_text("[" * 1_000_000)
    for name, path in {"a device": Path("/dev/zero"), "200 GB": giant, "nested": nested, "a loop": folder / "loop"}.items():
        yield f"tokenizer: {name}", partial(read_tokenizer, path)
    yield "data: a loop of links", lambda: list_files(str(loop))
    yield "data: a device", lambda: list_files("/dev/zero")
    for name, content in {"200 GB": giant, "nested": nested}.items():
        shards = folder / f"shards {name}"
        shards.mkdir()
        (shards / "meta.json").symlink_to(content)
        yield f"data: {name} of meta.json", partial(ShardFolder, shards)
        for part in ("manifest.json", "state.json"):
            saved = folder / f"{part} {name}" / "step-0000000001"
            saved.mkdir(parents=True)
            (saved / "state.json").write_text("{}")
            (saved / "manifest.json").write_text(json.dumps({"format": 1, "files": {"state.json": {"sha256": "0" * 64, "bytes": 2}}}))
            (saved / part).unlink()
            (saved / part).symlink_to(content)
            yield f"checkpoint: {name} of {part}", partial(open_checkpoint, saved)
    looped = folder / "checkpoint" / "step-0000000001"
    looped.mkdir(parents=True)
    (looped / "model").symlink_to(looped)
    (looped / "manifest.json").write_text('{"format": 1, "files": {}}')
    (looped / "state.json").symlink_to("state.json")
    yield "checkpoint: a loop of links", partial(open_checkpoint, looped)


def peak_kilobytes() -> int:
    """Of this program alone: what getrusage tells goes on from the process that started it, whatever that one held."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    [line] = [line for line in status.read_text().splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1])


def main(folder: Path) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (ROOM, ROOM))
    os.chdir(folder)
    registry.discover()
    for name, read in (*recipes(folder), *files(folder)):
        began = time.process_time()
        try:
            read()
            said = None
        except HymoError as error:
            said = str(error)
        except BaseException as error:
            said = f"Traceback: {type(error).__name__} {str(error)[:200]}"
        seconds = time.process_time() - began
        peak = peak_kilobytes() / 1024
        print(json.dumps({"case": name, "said": said, "seconds": round(seconds, 3), "peak_mb": round(peak)}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
