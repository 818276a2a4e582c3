import pytest

STUDY = "scale: tiny\ntrials: 1\nspace:\n  optimizer.adamw.lr: {low: 1e-4, high: 1e-2}\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--study", "none.yaml"), "must be a file that exists, but got 'none.yaml'"),
        (("best",), "a study must have been begun to have a best trial"),
        (("best", "model.softcap=3"), "takes its recipe from the study"),
        (("--trial", "3"), "--trial and --write go with `hymo search best`"),
        (("v1_00",), "'v1_00'; did you mean 'v1_0'"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(hymo, tmp_path, words, message):
    (tmp_path / "knobs.yaml").write_text(STUDY)
    done = hymo("search", *(words if "--study" in words else (*words, "--study", "knobs.yaml")))
    assert (done.code, done.err.count("\n")) == (2, 1), done.err
    assert message in done.err
