"""What-ifs: functions from a trace graph to that of another setting, each with the settings that realise it.

registry.py   all of them by name; reads `name=value`
what_if.py    what they have in common; nodes that are removed, added and scaled
layers.py     fused blocks, bfloat16, recomputation, and texts that name layers
workers.py    more or fewer workers, another batch, accumulation, another link
gradients.py  which gradients are summed together; no overlap, no input stalls
"""
