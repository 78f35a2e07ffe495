"""Tells praise from complaint in short texts: words to numbers in a tf.data pipeline.

Written for TensorFlow: elsewhere Keras gives a function that cleans texts arrays of NumPy, which no pipeline has.
"""

import random
import re
import string

import keras
import tensorflow as tf
from keras import layers

random.seed(0)
GOOD = ["great", "lovely", "calm", "superb", "friendly", "clean"]
BAD = ["awful", "noisy", "dirty", "rude", "broken", "slow"]
THINGS = "room staff breakfast pool view bed lobby street bar price".split()


def review():
    label = random.randrange(2)
    words = []
    for _ in range(random.randint(6, 40)):
        pool = (GOOD, BAD) if label else (BAD, GOOD)
        words.append(random.choice(THINGS))
        words.append(random.choice(pool[random.random() < 0.3]))
    return "<br />The " + " ".join(words) + "!", label


texts, labels = zip(*(review() for _ in range(3000)))


def clean(text):
    text = tf.strings.regex_replace(tf.strings.lower(text), "<br />", " ")
    return tf.strings.regex_replace(text, f"[{re.escape(string.punctuation)}]", "")


words = tf.data.Dataset.from_tensor_slices((list(texts), list(labels)))
train = words.take(2400).shuffle(2400, seed=1).batch(32)
validation = words.skip(2400).batch(32)

vectorize = layers.TextVectorization(standardize=clean, max_tokens=200, output_sequence_length=80)
vectorize.adapt(train.map(lambda text, label: text))
print("vocabulary:", vectorize.get_vocabulary()[:8])


def prepare(dataset):
    dataset = dataset.map(lambda text, label: (vectorize(text), label), num_parallel_calls=tf.data.AUTOTUNE)
    return dataset.cache().prefetch(tf.data.AUTOTUNE)


inputs = keras.Input((None,), dtype="int64")
x = layers.Embedding(200, 32)(inputs)
x = layers.Dropout(0.3)(x)
x = layers.Conv1D(64, 5, strides=2, activation="relu")(x)
x = layers.Conv1D(64, 5, strides=2, activation="relu")(x)
x = layers.GlobalMaxPooling1D()(x)
x = layers.Dense(32, activation="relu")(x)
model = keras.Model(inputs, layers.Dense(1, activation="sigmoid")(x))
model.compile(loss="binary_crossentropy", optimizer="adam", metrics=["accuracy"])
model.fit(prepare(train), validation_data=prepare(validation), epochs=4)
print(model.evaluate(prepare(validation), return_dict=True))
