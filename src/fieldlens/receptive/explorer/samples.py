"""Texts to begin with on the page of `fieldlens explore`, each with a word that depends on an early one."""

STORY = """\
Before she left for the harbour, Marta hid the brass key under the third flowerpot, the blue one with the crack. \
Nobody saw her do it. The morning was grey, the gulls were loud, and the ferry was late as usual, so she bought a \
coffee, read half a newspaper, and talked for a while with the man who sold the tickets. He had a cousin in the \
north who kept bees. The bees, he said, did not care about the weather, but they noticed when somebody was sad. \
Marta laughed and said that she would remember that.

The crossing took two hours. She slept through most of it, with her head against the cold window, and dreamt of \
stairs. When she woke up, the island was already there, flat and green, with one white house at its end. Her \
brother waited on the pier. He took her bag without a word, as he always did, and they walked past the school, the \
church and the shop that sold everything. Only at the gate did he ask whether the house was locked. It was, she \
said. And where was the key? She looked at him for a long time before she answered: under the third flowerpot, the \
blue one with the crack"""

PROGRAM = '''\
def moving_average(values, window):
    """Return the averages of `window` neighbouring values."""
    if window < 1:
        raise ValueError(f"window must be at least 1, got {window}")
    total = sum(values[:window])
    averages = [total / window]
    for leaving, entering in zip(values, values[window:]):
        total += entering - leaving
        averages.append(total / window)
    return averages


def test_moving_average():
    assert moving_average([1, 2, 3, 4], 2) == [1.5, 2.5, 3.5]
    assert moving_average([5], 1) == [5]
    with pytest.raises(ValueError, match="window must be at least 1'''

SAMPLES = [{"name": "A story", "text": STORY}, {"name": "A program", "text": PROGRAM}]
