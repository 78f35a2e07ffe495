"""The devices on which a Keras workload trains together: `devices` and `distribution` of a cell's settings.

A new backend is a module here with its name, whose class `Group` derives from `DeviceGroup`. A cell on one device has
a `DeviceGroup` itself, which changes nothing.

Each group proves its layout: what a device has is read from its arrays, since a backend may ignore a distribution
without any message (`keras.distribution` on TensorFlow does).
"""
