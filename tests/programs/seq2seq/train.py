"""Turns dates as people write them into ISO dates: an encoder and a decoder with masks.

Written for JAX, TensorFlow and PyTorch.
"""

import datetime
import random

import keras
import numpy as np
from keras import layers

random.seed(4)
CHARACTERS = sorted("abcdefghijklmnopqrstuvwxyz0123456789 ,./-[]")
NUMBER = {character: i + 1 for i, character in enumerate(CHARACTERS)}  # 0 is padding
FORMATS = ["%d %B %Y", "%B %d, %Y", "%d.%m.%Y", "%a %d %b %Y", "%m/%d/%Y"]


def pair():
    day = datetime.date(1950, 1, 1) + datetime.timedelta(days=random.randrange(30000))
    return day.strftime(random.choice(FORMATS)).lower(), "[" + day.isoformat() + "]"


def encode(texts):
    numbers = [[NUMBER[character] for character in text] for text in texts]
    return keras.utils.pad_sequences(numbers, padding="post")


pairs = [pair() for _ in range(2000)]
source = encode([first for first, _ in pairs])
target = encode([second for _, second in pairs])
print("longest source", source.shape[1], "longest target", target.shape[1])

vocabulary = len(CHARACTERS) + 1
written = keras.Input((None,), dtype="int32", name="written")
embedded = layers.Embedding(vocabulary, 24, mask_zero=True)(written)
states, forward, backward = layers.Bidirectional(layers.GRU(32, return_sequences=True, return_state=True))(embedded)
memory = layers.Concatenate()([forward, backward])

so_far = keras.Input((None,), dtype="int32", name="so_far")
x = layers.Embedding(vocabulary, 24, mask_zero=True)(so_far)
x = layers.GRU(64, return_sequences=True)(x, initial_state=memory)
context = layers.Attention()([x, states])
x = layers.Concatenate()([x, context])
following = layers.Dense(vocabulary)(x)

model = keras.Model([written, so_far], following)
model.compile(
    optimizer="adam",
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0),
    metrics=["accuracy"],
)
model.summary()
model.fit(
    {"written": source, "so_far": target[:, :-1]},
    target[:, 1:],
    batch_size=64,
    epochs=3,
    validation_split=0.1,
)


def read(text):
    answer = "["
    for _ in range(12):
        guess = model.predict([encode([text]), encode([answer])], verbose=0)
        answer += CHARACTERS[max(int(np.argmax(guess[0, -1])) - 1, 0)]
        if answer.endswith("]"):
            break
    return answer


print("17 march 1987 ->", read("17 march 1987"))
