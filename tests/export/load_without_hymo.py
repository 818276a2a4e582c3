"""What transformers makes of an exported folder where hymo is not installed: prints JSON. Usage: python load_without_hymo.py FOLDER PROMPT…"""

import json
import sys


class Hidden:
    """An import system that has never heard of hymo."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("hymo", "blocks", "ruamel", "mlflow", "typer"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Hidden())
sys.path[:] = [path for path in sys.path if not path.endswith("main")]

import torch  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402


def main(folder, *prompts):
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True, padding_side="left")
    ids = tokenizer(prompts[0], return_tensors="pt").input_ids
    batch = tokenizer(list(prompts), return_tensors="pt", padding=True)
    greedy = {"max_new_tokens": 8, "do_sample": False}
    half = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True, dtype=torch.bfloat16)
    buffers = {name: buffer.tolist() for name, buffer in model.named_buffers() if name.endswith(("assigned_E", "dropped"))}
    with torch.no_grad():
        found = {
            "ids": ids[0].tolist(),
            "logits": model(ids).logits[0].tolist(),
            "loss": model(ids, labels=ids).loss.item(),
            "last": model(ids, logits_to_keep=1).logits[0, 0].tolist(),
            "greedy": model.generate(batch.input_ids, attention_mask=batch.attention_mask, **greedy)[:, batch.input_ids.shape[1] :].tolist(),
            "no_cache": model.generate(ids, use_cache=False, **greedy)[0].tolist(),
            "beam": model.generate(ids, num_beams=3, use_cache=True, **greedy)[0].tolist(),
            "beam_no_cache": model.generate(ids, num_beams=3, use_cache=False, **greedy)[0].tolist(),
            "half": half.generate(ids, **greedy)[0].tolist(),
            "counters": sum(sum(values) for values in buffers.values()),
            "untrained": AutoModelForCausalLM.from_config(model.config, trust_remote_code=True)(ids).logits[0].tolist(),
            "padding_side": tokenizer.padding_side,
            "end": [tokenizer.eos_token, tokenizer.eos_token_id, tokenizer("<|endoftext|>").input_ids],
            "modules": sorted({name.split(".")[0] for name in sys.modules if name.partition(".")[0] in ("hymo", "blocks")}),
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
