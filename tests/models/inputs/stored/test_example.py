"""Messages of type tf.train.Example."""

from __future__ import annotations

from functools import partial

import pytest

from keras_matrix.models.inputs.stored.record_file import Features, WrongExample, decoded, encoded, label_and_text
from keras_matrix.models.inputs.stored.sample import Sample
from tests.golden import Golden
from tests.messages import check_messages, refusal


@pytest.mark.parametrize("label", [0, 1, 127, 128, 999, 2**31 - 1])
@pytest.mark.parametrize("size", [1, 100, 20_000, 3_000_000])
def test_samples_survive_encoding(label: int, size: int) -> None:
    sample = Sample(bytes(size), label)
    payload = encoded(sample, "klasse ü", "a/b.jpg")
    assert decoded(payload, Features()) == sample
    assert label_and_text(payload, Features()) == (label, "klasse ü")


def message(*parts: tuple[int, bytes]) -> bytes:
    """Return a message of pieces shorter than 128 bytes."""
    return b"".join(bytes((field << 3 | 2, len(data))) + data for field, data in parts)


def example(**features: bytes) -> bytes:
    """Return an Example of features that are messages."""
    entries = [message((1, message((1, name.encode()), (2, feature)))) for name, feature in features.items()]
    return message((1, b"".join(entries)))


BYTES = message((1, message((1, b"jpeg"))))
FOREIGN = Features("image", "label")


@pytest.mark.parametrize(
    "integers",
    [message((3, message((1, b"\x05")))), message((3, b"\x08\x05"))],
    ids=["packed", "not packed"],
)
def test_other_names_and_both_forms_of_integers_are_read(integers: bytes) -> None:
    assert decoded(example(image=BYTES, label=integers), FOREIGN) == Sample(b"jpeg", 5)


def test_records_of_tensorflow_datasets_are_read_by_their_own_names() -> None:
    payload = example(image=BYTES, label=message((3, message((1, b"\x05")))), file_name=BYTES)
    assert decoded(payload, Features()) == Sample(b"jpeg", 5)
    assert label_and_text(payload, Features()) == (5, "")


NO_LABEL = message((3, message((1, b"\xff" * 9 + b"\x01"))))
REFUSED = {
    "no label": (example(image=BYTES, size=BYTES), FOREIGN),
    "no features": (example(), FOREIGN),
    "an image that is a number": (example(image=message((3, b"\x08\x05")), label=message((3, b"\x08\x05"))), FOREIGN),
    "a label that is bytes": (example(image=BYTES, label=BYTES), FOREIGN),
    "a negative label": (example(image=BYTES, label=NO_LABEL), FOREIGN),
    "a record that is cut off": (b"\x0a\x7fabc", FOREIGN),
    "an image alone": (b"\xff\xd8\xff\xe0 no message at all", FOREIGN),
    "an empty record": (b"", FOREIGN),
    "features of other names": (example(png=BYTES, label=BYTES), Features()),
}


def test_every_record_of_something_else_has_its_message(golden: Golden) -> None:
    messages = {title: refusal(WrongExample, partial(decoded, *case)) for title, case in REFUSED.items()}
    check_messages(golden, "examples.txt", messages)
