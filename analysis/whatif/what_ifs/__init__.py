"""What-ifs: functions from a trace graph to that of another setting, each with the settings that realise it.

registry.py               all of them by name; reads `name=value`
what_if.py                what they have in common
rewriting.py              nodes that are removed, added and scaled
layers.py                 the layers of a graph, and texts that name some
workers.py                more or fewer data-parallel workers
link.py                   another bandwidth or latency
tensor_fusion.py          gradients that are summed together;  gradients.py: where they are in a graph
op_fusion.py              blocks of layers that are compiled as one program
precision.py              layers that compute in bfloat16
batch.py                  another batch size, and gradient accumulation
recomputation.py          layers whose forward pass runs again in the backward pass
removal.py                no overlap of communication, no input stalls
"""
