"""A program that asks its user."""

epochs = int(input("how many epochs? "))
