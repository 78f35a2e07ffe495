"""Searches for faster settings in replay. Nothing here measures: `verify` judges what a search predicts.

trajectory.py      what a search returns: what it tried, and the best strategies
families.py        which families a text such as `all,^memory` chooses, and all of them in sequence
tensor_fusion.py   which gradients are summed together, and contiguous partitions without replay
layer_choice.py    blocks of layers that are fused, and layers in bfloat16, by their probed gains
memory.py          recomputation and gradient accumulation, where the peak memory exceeds a budget
"""
