"""A small generative adversarial network that draws rings and filled discs.

Written for TensorFlow and PyTorch: the training step of two networks with two
optimizers is written out for each of the two.
"""

import keras
import numpy as np
from keras import layers, ops

SIZE = 16
LATENT = 24


def make_shapes(count, rng):
    """Grey pictures of a disc or a ring at a random place."""
    rows, columns = np.mgrid[0:SIZE, 0:SIZE]
    pictures = np.empty((count, SIZE, SIZE, 1), "float32")
    for i in range(count):
        centre = rng.uniform(5, SIZE - 5, 2)
        radius = rng.uniform(3, 5)
        distance = np.hypot(rows - centre[0], columns - centre[1])
        if rng.random() < 0.5:
            picture = distance < radius
        else:
            picture = np.abs(distance - radius) < 1
        pictures[i, :, :, 0] = picture
    return pictures * 2 - 1


def make_critic():
    return keras.Sequential(
        [
            keras.Input((SIZE, SIZE, 1)),
            layers.Conv2D(16, 4, strides=2, padding="same"),
            layers.LeakyReLU(negative_slope=0.2),
            layers.Conv2D(32, 4, strides=2, padding="same"),
            layers.LeakyReLU(negative_slope=0.2),
            layers.Flatten(),
            layers.Dropout(0.2),
            layers.Dense(1),
        ],
        name="critic",
    )


def make_painter():
    return keras.Sequential(
        [
            keras.Input((LATENT,)),
            layers.Dense(4 * 4 * 32),
            layers.Reshape((4, 4, 32)),
            layers.Conv2DTranspose(32, 4, strides=2, padding="same", activation="relu"),
            layers.Conv2DTranspose(16, 4, strides=2, padding="same", activation="relu"),
            layers.Conv2D(1, 3, padding="same", activation="tanh"),
        ],
        name="painter",
    )


class Gan(keras.Model):
    def __init__(self, critic, painter):
        super().__init__()
        self.critic = critic
        self.painter = painter
        self.seeds = keras.random.SeedGenerator(3)
        self.critic_loss = keras.metrics.Mean(name="critic_loss")
        self.painter_loss = keras.metrics.Mean(name="painter_loss")
        self.built = True

    def compile(self, critic_optimizer, painter_optimizer, loss):
        super().compile()
        self.critic_optimizer = critic_optimizer
        self.painter_optimizer = painter_optimizer
        self.loss = loss

    @property
    def metrics(self):
        return [self.critic_loss, self.painter_loss]

    def draw(self, count):
        return keras.random.normal((count, LATENT), seed=self.seeds)

    def loss_of_critic(self, real):
        count = ops.shape(real)[0]
        fake = self.painter(self.draw(count), training=True)
        scores = self.critic(ops.concatenate([real, fake]), training=True)
        labels = ops.concatenate([ops.ones((count, 1)), ops.zeros((count, 1))])
        labels = labels + 0.05 * keras.random.uniform(ops.shape(labels), seed=self.seeds)
        return self.loss(labels, scores)

    def loss_of_painter(self, count):
        scores = self.critic(self.painter(self.draw(count), training=True), training=True)
        return self.loss(ops.ones((count, 1)), scores)

    def logs(self, critic_loss, painter_loss):
        self.critic_loss.update_state(critic_loss)
        self.painter_loss.update_state(painter_loss)
        return {metric.name: metric.result() for metric in self.metrics}

    if keras.backend.backend() == "tensorflow":

        def train_step(self, real):
            import tensorflow as tf

            with tf.GradientTape() as tape:
                critic_loss = self.loss_of_critic(real)
            weights = self.critic.trainable_weights
            self.critic_optimizer.apply_gradients(zip(tape.gradient(critic_loss, weights), weights))
            with tf.GradientTape() as tape:
                painter_loss = self.loss_of_painter(tf.shape(real)[0])
            weights = self.painter.trainable_weights
            self.painter_optimizer.apply_gradients(zip(tape.gradient(painter_loss, weights), weights))
            return self.logs(critic_loss, painter_loss)

    elif keras.backend.backend() == "torch":

        def train_step(self, data):
            import torch

            real = data[0] if isinstance(data, (tuple, list)) else data
            self.zero_grad()
            critic_loss = self.loss_of_critic(real)
            critic_loss.backward()
            weights = list(self.critic.trainable_weights)
            with torch.no_grad():
                self.critic_optimizer.apply([w.value.grad for w in weights], weights)

            self.zero_grad()
            painter_loss = self.loss_of_painter(real.shape[0])
            painter_loss.backward()
            weights = list(self.painter.trainable_weights)
            with torch.no_grad():
                self.painter_optimizer.apply([w.value.grad for w in weights], weights)
            return self.logs(critic_loss, painter_loss)

    else:

        def train_step(self, *args):
            raise NotImplementedError("written for TensorFlow and PyTorch only")


class ShowProgress(keras.callbacks.Callback):
    """Prints one drawn picture as characters after every second epoch."""

    def on_epoch_end(self, epoch, logs=None):
        if epoch % 2:
            return
        picture = ops.convert_to_numpy(self.model.painter(self.model.draw(1)))[0, :, :, 0]
        for row in picture:
            print("".join(" .:*#"[int((value + 1) * 2.49)] for value in row))


keras.utils.set_random_seed(11)
shapes = make_shapes(1024, np.random.default_rng(0))
gan = Gan(make_critic(), make_painter())
gan.compile(
    critic_optimizer=keras.optimizers.Adam(3e-4, beta_1=0.5),
    painter_optimizer=keras.optimizers.Adam(3e-4, beta_1=0.5),
    loss=keras.losses.BinaryCrossentropy(from_logits=True),
)
gan.fit(shapes, batch_size=32, epochs=6, callbacks=[ShowProgress()])
gan.painter.save_weights("painter.weights.h5")
