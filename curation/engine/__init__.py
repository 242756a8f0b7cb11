"""The streaming engine: which stage has how many workers, and which item goes to which of them.

It knows no Ray: workers are reached through `curation.engine.cluster.Cluster`, which a real cluster
and a simulated one implement.
"""
