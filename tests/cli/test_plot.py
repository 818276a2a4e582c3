import json

from hymo.tracking import MlflowTracker, client


def make(folder, store="none", status="finished"):
    run = MlflowTracker(None, folder, tracking=store)
    run.start()
    for step in (1, 2, 3):
        run.metrics(step, {"loss/main": 5.0 - step, "grad_norm": 1.0})
    if status:
        run.finish(status)
    (folder / "recipe.yaml").touch()
    return run


def test_a_run_is_drawn_into_its_folder_and_its_mlflow_page(hymo, tmp_path, store):
    run = make(tmp_path / "runs" / "a", store)
    found = hymo("plot", "a")
    assert found.code == 0, found.err
    assert found.out.splitlines() == ["runs/a/pictures/loss.png", "runs/a/pictures/gradient_norm.png", f"MLflow run: {run.link}"]
    sent = client(store).list_artifacts(run.shipper.sent["run_id"], "pictures")
    assert [file.path for file in sent] == ["pictures/gradient_norm.png", "pictures/loss.png"]


def test_several_runs_are_drawn_into_one_picture(hymo, tmp_path):
    for name in "ab":
        make(tmp_path / "runs" / name)
    found = json.loads(hymo("plot", "a", "b", "--json").out)
    assert found == {"pictures": ["pictures/loss.png", "pictures/gradient_norm.png"], "mlflow": [None, None]}
    assert (tmp_path / "pictures" / "loss.png").is_file()
    assert hymo("plot", "a", "b", "--to", "x/y").out.splitlines()[0] == "x/y/loss.png"


def test_a_run_that_goes_on_keeps_its_own_record(hymo, tmp_path):
    run = make(tmp_path / "runs" / "a", status=None)
    before = (run.run_dir / "journal.jsonl").read_bytes()
    assert hymo("plot", "a").out.splitlines()[0] == "runs/a/pictures/loss.png"
    assert (run.run_dir / "journal.jsonl").read_bytes() == before
    run.finish("finished")


def test_what_cannot_be_drawn_is_one_line(hymo, tmp_path):
    (tmp_path / "runs" / "new").mkdir(parents=True)
    (tmp_path / "runs" / "new" / "recipe.yaml").touch()
    found = hymo("plot", "new")
    assert (found.code, found.err) == (2, "hymo: a run must have trained to be drawn, but got 'new', which has told nothing yet\n")
    assert "holds 8 runs at most" in hymo("plot", *["new"] * 9).err


def test_a_server_that_is_down_is_said_and_the_pictures_wait(hymo, tmp_path, monkeypatch):
    monkeypatch.setattr("hymo.tracking.PATIENCE_S", 0.1)
    monkeypatch.setattr("hymo.tracking.PAUSE_S", 0.1)
    (tmp_path / "file").touch()
    make(tmp_path / "runs" / "a", f"sqlite:///{tmp_path}/file/mlflow.db")
    found = hymo("plot", "a")
    assert found.code == 2
    assert "the tracking server must answer to take pictures" in found.err
    assert (tmp_path / "runs" / "a" / "pictures" / "loss.png").is_file()
    waiting = [json.loads(line) for line in (tmp_path / "runs" / "a" / "journal.jsonl").read_text().splitlines()][-2:]
    assert [(line["path"], line["folder"]) for line in waiting] == [(f"pictures/{name}.png", "pictures") for name in ("loss", "gradient_norm")]
