"""Attention kernels that also give the log-sum-exp, by which partial attentions are merged.

A backward takes the output and log-sum-exp of the *whole* attention, not of the block: then the
gradients of all blocks only add up (Dao 2023, FlashAttention-2, section 3.1.2).

Shapes: B batch, S queries, T keys, H query heads, K key heads, D head size, N and M packed tokens.
"""
