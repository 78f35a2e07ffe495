"""Predicts price, energy class and the need of repair of houses from numbers and a plan.

Written for JAX, TensorFlow and PyTorch: two inputs, three outputs with losses and weights
of their own, and weights of samples for one of the outputs.
"""

import keras
import numpy as np
from keras import layers


def make_houses(count):
    rng = np.random.default_rng(21)
    facts = rng.normal(size=(count, 6)).astype("float32")
    plans = rng.random((count, 24, 24, 1)).astype("float32")
    light = plans.mean(axis=(1, 2, 3)) * 10
    price = facts[:, 0] * 3 + facts[:, 1] + light
    energy = np.digitize(facts[:, 2] + light - 5, [-1, 0, 1])
    repair = (facts[:, 3] + rng.normal(0, 0.5, count) > 1).astype("float32")
    return {"facts": facts, "plan": plans}, {
        "price": price.astype("float32"),
        "energy": energy,
        "repair": repair,
    }


def make_model():
    facts = keras.Input((6,), name="facts")
    plan = keras.Input((24, 24, 1), name="plan")
    x = layers.Conv2D(16, 3, activation="relu")(plan)
    x = layers.MaxPooling2D(2)(x)
    x = layers.Conv2D(32, 3, activation="relu")(x)
    x = layers.GlobalAveragePooling2D()(x)
    joined = layers.concatenate([layers.Dense(16, activation="relu")(facts), x])
    joined = layers.Dropout(0.1)(layers.Dense(48, activation="relu")(joined))
    outputs = {
        "price": layers.Dense(1, name="price")(joined),
        "energy": layers.Dense(4, activation="softmax", name="energy")(joined),
        "repair": layers.Dense(1, activation="sigmoid", name="repair")(joined),
    }
    return keras.Model({"facts": facts, "plan": plan}, outputs)


def main():
    x, y = make_houses(2500)
    weights = {
        "price": np.ones(2500, "float32"),
        "energy": np.ones(2500, "float32"),
        "repair": np.where(y["repair"] == 1, 5.0, 1.0).astype("float32"),
    }
    model = make_model()
    model.compile(
        optimizer=keras.optimizers.RMSprop(1e-3),
        loss={"price": "mse", "energy": "sparse_categorical_crossentropy", "repair": "binary_crossentropy"},
        loss_weights={"price": 0.2, "energy": 1.0, "repair": 2.0},
        metrics={"price": ["mae"], "energy": ["accuracy"], "repair": [keras.metrics.AUC(name="auc")]},
    )
    model.fit(x, y, sample_weight=weights, batch_size=50, epochs=4, verbose=2)
    for name, value in model.evaluate(x, y, return_dict=True, verbose=0).items():
        print(f"{name:20} {value:.4f}")


if __name__ == "__main__":
    main()
