from hymo.figures.story import read_story


def test_a_story_is_read_from_the_journal(story):
    assert story.name == "hy"
    assert story.metrics["loss/main"][:2] == [(1, 4.95), (2, 4.9)]
    assert list(story.measured("moe/load")) == ["M0", "M1"]
    assert story.measured("decay_rate")["G0"] == [(20, [0.5, 2.0]), (40, [0.5, 4.0])]
    assert story.by_position() == {20: [(1, 4.5), (2, 4.0), (16, 3.5)], 40: [(1, 4.5), (2, 4.0), (16, 3.25)]}


def test_a_run_that_has_told_nothing_has_an_empty_story(tmp_path):
    assert read_story(tmp_path).metrics == {}
