from hymo.figures.style import drawn, svg


def line(figure, values):
    figure.subplots().plot(values)
    return bool(values)


def test_a_drawing_becomes_text_that_repeats():
    first, again = svg(drawn(line, [1, 2])), svg(drawn(line, [1, 2]))
    assert first == again
    assert first.startswith("<svg")
    assert "<text" in first, "letters stay letters"


def test_nothing_to_draw_is_no_figure():
    assert drawn(line, []) is None
