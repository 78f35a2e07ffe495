"""Messages of type tf.train.Example."""

from __future__ import annotations

import pytest

from keras_matrix.models.inputs.stored.record_file import Features, WrongExample, decoded, encoded, label_and_text
from keras_matrix.models.inputs.stored.sample import Sample


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


def test_record_of_other_names_says_which_ones_are_read() -> None:
    with pytest.raises(WrongExample) as refused:
        decoded(example(png=BYTES, label=BYTES), Features())
    assert str(refused.value) == (
        "has no feature 'image/encoded'; it has label, png; write the image and its label as image/encoded and "
        "image/class/label, or as image and label"
    )


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (example(image=BYTES, size=BYTES), "has no feature 'label'; it has image, size; write the image"),
        (example(), "has no feature 'image'; it has no features"),
        (example(image=message((3, b"\x08\x05")), label=message((3, b"\x08\x05"))), "'image' has no bytes"),
        (example(image=BYTES, label=BYTES), "'label' has no integer"),
        (
            example(image=BYTES, label=message((3, message((1, b"\xff" * 9 + b"\x01"))))),
            "'label' must be a label from 0, got -1",
        ),
        (b"\x0a\x7fabc", "is not a tf.train.Example"),
        (b"\xff\xd8\xff\xe0 no message at all", "is not a tf.train.Example"),
        (b"", "has no feature 'image'"),
    ],
)
def test_other_records_are_refused_with_the_reason(payload: bytes, reason: str) -> None:
    with pytest.raises(WrongExample, match=reason):
        decoded(payload, FOREIGN)
