"""Reads TFRecord files as TensorFlow's users do, and prints labels and checksums of the images as JSON."""

import json
import sys
import zlib

import tensorflow as tf

FEATURES = {
    "image/encoded": tf.io.FixedLenFeature([], tf.string),
    "image/class/label": tf.io.FixedLenFeature([], tf.int64),
    "image/class/text": tf.io.FixedLenFeature([], tf.string),
    "image/filename": tf.io.FixedLenFeature([], tf.string),
}
found = []
for record in tf.data.TFRecordDataset(sys.argv[2:]):
    one = tf.io.parse_single_example(record, FEATURES)
    image = one["image/encoded"].numpy()
    found.append(
        [
            int(one["image/class/label"]),
            zlib.crc32(image),
            one["image/class/text"].numpy().decode(),
            one["image/filename"].numpy().decode(),
        ]
    )
# A file that TensorFlow wrote itself, for our reader.
with tf.io.TFRecordWriter(sys.argv[1]) as writer:
    for number in range(5):
        features = {
            "pixels": tf.train.Feature(bytes_list=tf.train.BytesList(value=[bytes([number]) * 1000])),
            "y": tf.train.Feature(int64_list=tf.train.Int64List(value=[number])),
            "other": tf.train.Feature(float_list=tf.train.FloatList(value=[1.0, 2.0])),
        }
        writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())
print(json.dumps(found))
