"""The program."""

from parts import ARGUMENTS, parts

model, x, y = parts()
model.fit(x, y, epochs=2, **ARGUMENTS)
