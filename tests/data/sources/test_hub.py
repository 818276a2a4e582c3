import json
from pathlib import Path

import pytest

from hymo.data.sources import Hub
from hymo.errors import DataError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A dataset of four files of six rows, opened by the same code as one of the hub."""
    for part in range(4):
        lines = (json.dumps({"text": f"{part}.{row}", "id": row}) + "\n" for row in range(6))
        (tmp_path / f"part-{part}.jsonl").write_text("".join(lines))
    return tmp_path


ALL = [f"{part}.{row}".encode() for part in range(4) for row in range(6)]


def test_documents_in_the_dataset_s_order(folder: Path):
    assert list(Hub(f"hf:{folder}", "text").documents()) == ALL


def test_files_in_an_order_of_seed_and_epoch(folder: Path):
    hub = Hub(f"hf:{folder}", "text")
    orders = {(seed, epoch): hub.reader(seed, {"epoch": epoch}).read(99) for seed in range(3) for epoch in range(2)}
    assert all(sorted(order) == ALL for order in orders.values())
    assert len({tuple(order) for order in orders.values()}) > 2
    assert orders[1, 1] == Hub(f"hf:{folder}", "text").reader(1, {"epoch": 1}).read(99)
    for order in orders.values():       # a file stays whole
        assert [d[2:] for d in order] == [str(row).encode() for row in range(6)] * 4


@pytest.mark.parametrize("taken", range(26))
def test_every_place_is_gone_on_from_exactly(folder: Path, taken: int):
    reader = Hub(f"hf:{folder}", "text").reader(3, {"epoch": 0})
    whole = Hub(f"hf:{folder}", "text").reader(3, {"epoch": 0}).read(99)
    assert reader.read(taken) == whole[:taken]
    place = json.loads(json.dumps(reader.place))
    assert Hub(f"hf:{folder}", "text").reader(3, place).read(99) == reader.read(99) == whole[taken:]


def test_the_fingerprint_follows_files_field_and_configuration(folder: Path):
    before = Hub(f"hf:{folder}", "text").fingerprint
    assert Hub(f"hf:{folder}", "text").fingerprint == before
    assert Hub(f"hf:{folder}", "id").fingerprint != before
    (folder / "part-4.jsonl").write_text('{"text": "new", "id": 0}\n')
    assert Hub(f"hf:{folder}", "text").fingerprint != before


def test_names():
    hub = Hub("hf:HuggingFaceFW/fineweb-edu:sample-10BT", "text")
    assert (hub.path, hub.config) == ("HuggingFaceFW/fineweb-edu", "sample-10BT")
    assert Hub("hf:openai/x", "text").config is None


@pytest.mark.parametrize(
    ("spec", "field", "message"),
    [
        ("hf:", "text", r"must name a dataset after hf:"),
        ("hf:/nowhere/at-all", "text", r"must be a dataset that `datasets` can stream, but got FileNotFoundError"),
        ("hf:{}:other", "text", r"but got ValueError: BuilderConfig 'other' not found"),
        ("hf:{}", "body", r"must be in field 'body' \(data.field\), but got fields \['id', 'text'\]"),
        ("hf:{}", "id", r"field 'id' must be a string, but got int"),
    ],
)
def test_what_cannot_be_streamed_is_refused_in_one_line(folder: Path, spec: str, field: str, message: str):
    with pytest.raises(DataError, match=message) as caught:
        list(Hub(spec.format(folder), field).documents())
    assert "\n" not in str(caught.value)


def test_a_damaged_file_is_refused(folder: Path):
    (folder / "part-2.jsonl").write_text('{"text": "x"\n{{{')
    with pytest.raises(DataError, match=r"must be a dataset that `datasets` can stream"):
        list(Hub(f"hf:{folder}", "text").documents())
