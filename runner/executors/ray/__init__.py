"""Cells on the nodes of a Ray cluster: `runner --executor ray`.

Ray finds the nodes, holds each machine's measuring slot for one session at a time, starts an `agent` on each node, and
reports the nodes that are lost. The agent measures with the process executor of its node, as on a single machine; of
Ray's own environment nothing reaches a cell. This package is imported only for that executor.
"""
