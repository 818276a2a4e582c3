import re
from html.parser import HTMLParser

import pytest

from hymo.cost import count
from hymo.figures.stack import changes, render, settings, write_page
from hymo.recipe import load_recipe


def page(*overrides, scale="tiny"):
    return render(load_recipe("v1_0", overrides, scale=scale))


def rows(text):
    """What stands in each layer's row, tags left out."""
    return [re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", row)).strip() for row in text.split('<div class="index">')[1:]]


def test_every_layer_is_drawn_with_its_cost():
    found, cost = rows(page(scale="full")), count(load_recipe("v1_0"))
    assert len(found) == 32
    assert found[0].startswith("0 M0 mla moe 108 M, 21.4 M 59.5 M 1.2 MiB")
    assert found[1].startswith("1 G0 gdn 8.07 M 16.3 M 167.5 KiB")
    assert f"{cost.active:,}" in page(scale="full")
    assert cost.layers[1].state_bytes == 171_520        # 167.5 KiB: 40,960 numbers of 4 bytes and 3,840 of 2


def test_overrides_are_marked_where_they_are():
    found = rows(page('model.overrides={"before:M": {mixer: {rope: none}}, "M[0]": {ffn: {top_k: 1}}}'))
    assert [index for index, row in enumerate(found) if "before:M: mixer.rope=none" in row] == [3]
    assert "M[0]: ffn.top_k=1" in found[0]
    assert sum("class=\"mark\"" in part for part in page().split("<div")) == 0


def test_the_page_needs_nothing_beside_it():
    text = page()
    assert not re.search(r"(src|href)=|@import|url\(", text)

    class Checked(HTMLParser):
        open: list[str] = []

        def handle_starttag(self, tag, attrs):
            if tag not in ("meta", "br"):
                self.open.append(tag)

        def handle_endtag(self, tag):
            assert self.open.pop() == tag

    parser = Checked()
    parser.feed(text)
    assert parser.open == []


@pytest.mark.parametrize("overrides", [["model.mtp={depth: 0, weights: []}"], ["model.tie_embeddings=false", "model.softcap=0"]])
def test_models_without_the_extras(overrides):
    assert "</html>" in page(*overrides)


def test_written_whole(tmp_path):
    recipe = load_recipe("v1_0", scale="tiny")
    write_page(recipe, tmp_path / "stack.html")
    assert (tmp_path / "stack.html").read_text() == render(recipe)


def test_a_block_in_words():
    model = load_recipe("v1_0", scale="tiny").model
    assert settings(model.rope) == "rope(theta=10000.0)"
    other = load_recipe("v1_0", ["model.layers.G.mixer.rope=none"], scale="tiny").model
    assert changes("mixer", model.layers["G"].mixer, other.layers["G"].mixer) == ["mixer.rope=none"]
    assert changes("mixer", model.layers["G"].mixer, model.layers["M"].mixer) == ["mixer=mla"]
