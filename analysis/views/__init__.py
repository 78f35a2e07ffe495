"""What is shown, as values: each is made once from findings, and every output renders the same one.

Values that are shown as they are computed have no module here: `Roofline`, `StallReport`, `Verification`,
`Explanation`, `DeviceScaling` and `FcFigure`, the last two in the cells of the `ResultTable`.
"""
