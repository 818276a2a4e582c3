"""lm-eval-harness on an exported run: needs hymo[eval]. The task lies in the test; nothing is downloaded."""

import json
import math

import pytest
import torch

pytest.importorskip("lm_eval", reason="needs hymo[eval]")
pytestmark = pytest.mark.filterwarnings("default")      # the harness and what it imports warn on their own account

TASK = """
task: tiny_choice
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{text}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{label}}}}"
target_delimiter: ""
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
"""
DOCUMENTS = [("def f(", ["self", "x, y"]), ("import", [" sys", "ant"]), ("return", ["#$%", " self"]), ("a", ["b", "c"])]


def test_a_local_task_is_scored_with_the_models_own_likelihoods(exported, trained, tmp_path, monkeypatch):
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(name, "1")
    file = tmp_path / "documents.jsonl"
    file.write_text("\n".join(json.dumps({"text": text, "choices": choices, "label": 0}) for text, choices in DOCUMENTS))
    (tmp_path / "tiny.yaml").write_text(TASK.format(file=file))
    found = simple_evaluate(
        model="hf", model_args=f"pretrained={exported},trust_remote_code=True", tasks=["tiny_choice"], device="cpu", batch_size=2,
        task_manager=TaskManager(include_path=str(tmp_path), include_defaults=False), bootstrap_iters=0, log_samples=True,
    )  # fmt: skip
    expected = [[log_likelihood(trained, text, choice) for choice in choices] for text, choices in DOCUMENTS]
    scored = sorted(found["samples"]["tiny_choice"], key=lambda sample: sample["doc_id"])
    assert [[answer[0] for answer in sample["filtered_resps"]] for sample in scored] == [pytest.approx(row, abs=1e-3) for row in expected]
    right = sum(row[0] == max(row) for row in expected)
    assert found["results"]["tiny_choice"]["acc,none"] == pytest.approx(right / len(DOCUMENTS))
    assert math.isfinite(sum(map(sum, expected)))


def log_likelihood(trained, text, choice):
    context, tokens = trained.tokenizer.encode(text), trained.tokenizer.encode(choice)
    with torch.no_grad():
        logs = torch.log_softmax(trained.model(torch.tensor([context + tokens]))[0], dim=-1)
    return sum(logs[len(context) + i - 1, token].item() for i, token in enumerate(tokens))
