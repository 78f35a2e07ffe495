"""Images as they are stored: folders of JPEG files, TFRecord and ArrayRecord files, and what writes them."""
