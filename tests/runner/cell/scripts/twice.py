"""Pretraining and fine-tuning in a function of the project's own package; evaluation and prediction after them."""

import numpy as np
from parts.training import classifier, train

if __name__ == "__main__":
    x, y = np.random.rand(256, 4).astype("float32"), np.random.rand(256, 1).astype("float32")
    model = classifier()
    train(model, x[:64], y[:64])
    for _ in range(2):
        model.fit(x, y, batch_size=32, verbose=0)
    model.evaluate(x, y, verbose=0)
    print(model.predict(x, verbose=0).shape)
