"""What explains the change of a step time: a pure core, from two traces to differences with their shares.

parts.py           divides the time of a step among operations, waits and gaps, so that the parts add up to it
alignment.py       pairs the parts of two traces
kinds.py           the kinds of differences, each a function
explanation.py     the steps without what the profiler added, the differences by size, and how much is unexplained
facts.py           what else differs in the records: settings, versions, memory, compiled programs
"""
