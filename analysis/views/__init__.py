"""What is shown, as values: each is made once, and every output, the findings of a run included, reads the same one.

Renderers choose columns, units and words; no figure is computed or looked up there, so they cannot disagree.

Values that are shown as they are computed have no module here: `Roofline`, `StallReport`, `Verification`,
`Explanation`, `DeviceScaling` and `FcFigure`, the last two in the cells of the `ResultTable`.
"""
