"""Training of several models of one shape as a stack: one step trains them all.

`group` runs the sub-epoch of a group of models. `stack` computes losses and gradients of all members by `torch.vmap`,
`row_optimizer` steps each member's optimizer, `member` connects a member with its checkpoint, batches and savepoints,
`structure` decides which models can be stacked. `random_numbers` and `recurrent` replace functions of torch that
`vmap` cannot compute per member. The state of a member has the form of an unfused model, so each member may leave.
"""
